"""Networks that do not classify: a denoiser, a detector, a segmentation network, a reader; pruned without training.

    python benchmarks/tasks.py --data FOLDER [--tasks denoise,detect,...] [--methods auto,none,grail] [--flops 0.5]

FOLDER holds the trained networks and images that `_tasks/` names. Calibration images, images to train on and images to
score on never meet; nothing was chosen on any of them. Rows are appended to benchmarks/results/tasks.jsonl as soon as
they are known; the table is tasks.md. `--tasks detect --methods "" --keep FOLDER --train` trains kept detectors on with
the trainer of ultralytics. `--tasks denoise --methods "" --keep FOLDER --strip docs/images/denoise.png`
draws the pictures of the documentation.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from _accuracy.methods import METHODS
from _results import RESULTS, opened
from _tasks import denoise, plates, text
from _tasks.case import Case
from _tasks.plate_training import EPOCHS, RATES, trained
from _tasks.table import table
from torch import nn

import slimilar
from slimilar.utils.atomic import write_text
from slimilar.utils.row_ledger import RowLedger

TASKS = {
    "denoise": denoise.case, "detect": plates.case, "segment": text.segmentation, "read": text.reading,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--methods", default="auto,none,grail")
    parser.add_argument("--seeds", default="0", help="of the calibration images, separated by commas")
    parser.add_argument(
        "--flops", default="", help="budgets of a task's own, separated by commas; all without"
    )
    parser.add_argument("--keep", type=Path, help="folder for the pruned networks")
    parser.add_argument(
        "--train", action="store_true", help="train kept detectors on, with their own trainer"
    )
    parser.add_argument(
        "--strip", type=Path, help="draw the pictures of the documentation from kept denoisers"
    )
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    ledger = opened(RESULTS / "tasks.jsonl", "benchmarks/_accuracy", "benchmarks/_tasks")
    for seed in map(int, args.seeds.split(",")):
        for name in filter(None, args.tasks.split(",")):
            case = TASKS[name](args.data, seed)
            same = {"task": name, "network": case.task.name, "seed": seed}
            ledger.row({**same, "method": "before", "flops": 1.0}, partial(case.score, case.task.model))
            if args.strip is not None and name == "denoise":
                denoise.strip(case.task, args.keep, args.strip)
            if args.train and name == "detect":
                _train(args, case, same, ledger)
            for method in filter(None, args.methods.split(",")):
                for flops in _budgets(case, args.flops):
                    key = {**same, "method": method, "flops": flops}
                    ledger.row(key, partial(_pruned, case, method, flops, args.keep))
    write_text(RESULTS / "tasks.md", table(ledger.rows))


def _train(args: argparse.Namespace, case: Case, same: dict[str, Any], ledger: RowLedger) -> None:
    for flops, method in product(_budgets(case, args.flops), RATES):
        key = {**same, "method": method, "flops": flops, "epochs": EPOCHS}
        ledger.row(key, partial(trained, case, args.data, args.keep, method, flops))


def _budgets(case: Case, wanted: str) -> list[float]:
    """Return the budgets of a task that are among those wanted, all of them if none is named."""
    return [flops for flops in case.budgets if not wanted or flops in map(float, wanted.split(","))]


def _pruned(case: Case, method: str, flops: float, keep: Path | None) -> dict[str, Any]:
    began, used = time.perf_counter(), time.process_time()
    small = METHODS[method][2](case.task, flops)
    took = {"seconds": round(time.perf_counter() - began, 2), "cpu": round(time.process_time() - used, 2)}
    if keep is not None:
        slimilar.save(small, keep / f"{case.task.name}-{flops}-{method}-{case.task.seed}.safetensors")
    left = {"flops_left": _left(case, small), "calibration": len(case.task.calibration)}
    return {**took, **left, **case.score(small)}


def _left(case: Case, small: nn.Module) -> float:
    """Return the share of the FLOPs that is left."""
    before, after = (slimilar.count(model, case.task.example).flops for model in (case.task.model, small))
    return round(after / before, 4)


if __name__ == "__main__":
    main()
