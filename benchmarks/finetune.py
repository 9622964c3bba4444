"""Fine-tuning after pruning: from a fitted network, from plain removal and from rivals, at equal cost and epochs.

    python benchmarks/finetune.py --data FOLDER [--networks vgg16-cifar10,...] [--epochs 1,3,10] [--seeds 0]
    python benchmarks/finetune.py --data FOLDER --choose

CIFAR-10: VGG-16 at a third and ResNet-56 at half of their FLOPs. Networks train on the first 45,000 training images and
are scored on all test images. `--choose` compares settings on another network and dataset instead, ResNet-56 at half of
its FLOPs on CIFAR-100, after one or three passes over 5,000 or 20,000 training images, scored on 5,000 test images; the
best was entered in the recipe and in `_finetune/tunings.py` by hand, for every start by itself. A stopped run is
resumed. Rows are appended to benchmarks/results/finetune.jsonl (finetune-choice.jsonl) as soon as they are known, the
most telling first; the table is finetune.md, made again by `--epochs ""`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from _accuracy.images import FIT, load
from _accuracy.methods import METHODS
from _finetune.table import table
from _finetune.tunings import CHOICE, CHOICE_FLOPS, CHOSEN, FLOPS, VARIATIONS, Tuning, schedule, trials
from _results import RESULTS, opened
from torch import nn

import slimilar
from slimilar.data import Images, cifar
from slimilar.models.checkpoints import CHECKPOINTS, Pretrained, pretrained
from slimilar.train import TrainingSettings, finetune
from slimilar.train.settings import Precision
from slimilar.utils.atomic import write_text
from slimilar.utils.row_ledger import RowLedger
from slimilar.utils.suggestions import choose

SCORED = 5_000  # test images that a trial of settings is scored on
_SHARE = {**FLOPS, CHOICE: CHOICE_FLOPS}


@dataclass(frozen=True, eq=False)
class Work:
    """Where everything is."""

    data: Path
    runs: Path
    seed: int
    threads: int
    images: int = FIT  # to train on, in every epoch
    precision: Precision = "float32"

    @cache  # noqa: B019 (lives as long as the program)
    def network(self, name: str) -> tuple[Pretrained, Images, Images]:
        """Return a trained network, its training images and its test images."""
        found = pretrained(name, self.data)
        train, test = (
            cifar(found.dataset, split, self.data).normalised(found.normalisation)
            for split in ("train", "test")
        )
        return found, train, test

    @cache  # noqa: B019
    def pruned(self, name: str, start: str) -> nn.Module:
        """Return a pruned network; what takes long is made once, and kept beside the runs."""
        file = self.runs / f"{name}-{_SHARE[name]}-{start}-{self.seed}.safetensors"
        if file.exists():
            return slimilar.load(file, pretrained(name, self.data).model)
        made = METHODS[start][2](load(name, self.data, "held-out", 1, self.seed), _SHARE[name])
        if start == "auto":  # others leave no record of what they removed, and take seconds
            slimilar.save(made, file)
        return made


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--networks", default=",".join(FLOPS))
    parser.add_argument("--starts", default="", help="only these, such as auto,none")
    parser.add_argument("--tunings", default="", help="only these, separated by semicolons")
    parser.add_argument("--epochs", default="1,3,10")
    parser.add_argument("--choose", action="store_true", help="compare settings on another network")
    parser.add_argument("--runs", type=Path, default=Path("runs/finetune"), help="where runs are kept")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--images", type=int, default=FIT, help="train on so many of the 45,000 images")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32",
                        help="of convolutions in training; scores are always computed in float32")  # fmt: skip
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    networks, starts = _named(args.networks, FLOPS, "network"), _named(args.starts, CHOSEN, "start")
    ways = (
        VARIATIONS if args.choose else {name: way for ways in CHOSEN.values() for name, way in ways.items()}
    )
    tunings = _named(args.tunings, ways, "tuning", ";")
    epochs = [int(e) for e in args.epochs.split(",") if e]
    for seed in map(int, args.seeds.split(",")):
        work = Work(args.data, args.runs, seed, args.threads, args.images, args.precision)
        if args.choose:
            _choose(work, starts, tunings, epochs)
        else:
            _score(work, (networks, starts, tunings, epochs))
    write_text(RESULTS / "finetune.md", table(_ledger("finetune").rows, _ledger("finetune-choice").rows))


def _ledger(name: str) -> RowLedger:
    return opened(RESULTS / f"{name}.jsonl", "benchmarks/_accuracy", "benchmarks/_finetune")


def _named(text: str, known: Iterable[str], kind: str, between: str = ",") -> list[str]:
    """Return the names of a list, each of which must be known; all if it is empty."""
    return [choose(name, list(known), kind) for name in text.split(between) if name] or list(known)


def _choose(work: Work, starts: list[str], tunings: list[str], lengths: list[int]) -> None:
    """Compare settings after some passes over some training images of another dataset, on its test images."""
    ledger = _ledger("finetune-choice")
    for images, epochs, start, name in trials():
        if start in starts and name in tunings and epochs in lengths:
            key = {
                "network": CHOICE, "flops": CHOICE_FLOPS, "start": start, "tuning": name, "training images": images,
                "epochs": epochs, "seed": work.seed, "precision": work.precision,
            }  # fmt: skip
            ledger.row(key, partial(_trial, work, key, VARIATIONS[name]))


def _trial(work: Work, key: dict[str, Any], tuning: Tuning) -> dict[str, Any]:
    found, train, test = work.network(CHOICE)
    images = _some(train, key["training images"], work.seed)
    result = finetune(
        work.pruned(CHOICE, key["start"]), images, replace(tuning.recipe, epochs=key["epochs"]),
        test=_some(test, SCORED, work.seed), settings=_settings(work, tuning),
        teacher=None if tuning.teacher is None else found.model,
    )  # fmt: skip
    accuracy = {"pruned": _percent(result.start_accuracy), "accuracy": _percent(result.accuracy)}
    return accuracy | {"test images": SCORED, "threads": work.threads}


def _some(images: Images, count: int, seed: int) -> Images:
    """Return some images in random order: those of CIFAR-100 are sorted by class."""
    return images.at(torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))[:count])


def _score(work: Work, wanted: Sequence[Sequence[Any]]) -> None:
    """Run what is wanted: networks, starts, tunings and epochs."""
    ledger = _ledger("finetune")
    for run in schedule():
        if all(value in allowed for value, allowed in zip(run, wanted, strict=True)):
            network, start, name, length = run
            key = {
                "network": network, "flops": FLOPS[network], "start": start, "tuning": name, "epochs": length,
                "training images": work.images, "seed": work.seed, "precision": work.precision,
            }  # fmt: skip
            ledger.row(key, partial(_tuned, work, key, CHOSEN[start][name]))


def _tuned(work: Work, key: dict[str, Any], tuning: Tuning) -> dict[str, Any]:
    """Prune, fine-tune, score on all test images."""
    found, train, test = work.network(key["network"])
    folder = work.runs / "-".join(str(value) for value in key.values())
    began, cpu = time.perf_counter(), time.process_time()
    result = finetune(
        work.pruned(key["network"], key["start"]), train.first(work.images),
        replace(tuning.recipe, epochs=key["epochs"]), test=test, folder=folder, resume=True,
        teacher=None if tuning.teacher is None else found.model, settings=_settings(work, tuning),
    )  # fmt: skip
    return {
        "before": _percent(CHECKPOINTS[key["network"]].accuracy),  # on the same images: accuracy.md
        "pruned": _percent(result.start_accuracy),
        "accuracy": _percent(result.accuracy),
        "seconds": round(time.perf_counter() - began),
        "cpu": round(time.process_time() - cpu),
        "lr": tuning.recipe.lr,
        "threads": work.threads,
        "test images": len(test),
    }


def _settings(work: Work, tuning: Tuning) -> TrainingSettings:
    return TrainingSettings(
        seed=work.seed, precision=work.precision, save_every=200, distillation=tuning.distillation,
        tensorboard=False,
    )  # fmt: skip


def _percent(share: float | None) -> float:
    return round(100 * (share or 0), 2)


if __name__ == "__main__":
    main()
