"""A short fine-tuning of ImageNet networks on a thousand images, guarded against overfitting.

    python benchmarks/finetune_imagenet.py --data FOLDER [--networks mobilenetv2-imagenet,resnet50-imagenet] [--seed 0]

FOLDER/imagenet holds three images of every class. The first calibrate (256 of them) and train; the original is the
teacher, labels are not used. The second decide for how many epochs, none among them, and at which rate. The third are
scored on, once: the pruned network and the one that was chosen. Rows are appended to
benchmarks/results/finetune_imagenet.jsonl as soon as they are known; the table is finetune_imagenet.md.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from _accuracy.images import load
from _accuracy.methods import METHODS
from _results import RESULTS, opened
from torch import Tensor, nn

import slimilar
from slimilar.data.folder import image_folder
from slimilar.models.checkpoints import Pretrained, pretrained
from slimilar.train import Distillation, TrainingSettings, finetune, recipe
from slimilar.utils.atomic import write_text
from slimilar.utils.row_ledger import RowLedger

FLOPS = 0.75
TRIALS = {"mobilenetv2-imagenet": ((2, 4), (0.003,)), "resnet50-imagenet": ((1, 2), (0.001,))}
TUNING = replace(recipe("reconstructed"), batch_size=32)
Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--networks", default=",".join(TRIALS))
    parser.add_argument("--runs", type=Path, default=Path("runs/finetune"), help="where runs are kept")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32",
                        help="of convolutions in training; scores are always computed in float32")  # fmt: skip
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    ledger = opened(RESULTS / "finetune_imagenet.jsonl", "benchmarks/_accuracy")
    for network in filter(None, args.networks.split(",")):
        _compare(args, ledger, network)
    write_text(RESULTS / "finetune_imagenet.md", _table(ledger.rows))


def _compare(args: argparse.Namespace, ledger: RowLedger, network: str) -> None:
    """Choose on the second images of all classes, then score on the third."""
    found = pretrained(network, args.data)
    small = _pruned(args, network)
    same = {"network": network, "flops": FLOPS, "seed": args.seed, "precision": args.precision}
    rows = [
        ledger.row(
            {**same, "epochs": 0, "lr": 0.0, "part": "held-out"}, partial(_scored, args, found, small, 1)
        )
    ]
    for epochs, lr in product(*TRIALS[network]):
        key = {**same, "epochs": epochs, "lr": lr, "part": "held-out"}
        tuned = partial(_tuned, args, found, small, epochs, lr)
        rows.append(ledger.row(key, lambda tuned=tuned: _scored(args, found, tuned(), 1)))  # type: ignore[misc]
    best = max(rows, key=lambda row: row["accuracy"])
    ledger.row({**same, "method": "before", "part": "test"}, partial(_scored, args, found, found.model, 2))
    ledger.row({**same, "epochs": 0, "lr": 0.0, "part": "test"}, partial(_scored, args, found, small, 2))
    if best["epochs"]:
        key = {**same, "epochs": best["epochs"], "lr": best["lr"], "part": "test"}
        ledger.row(
            key, lambda: _scored(args, found, _tuned(args, found, small, best["epochs"], best["lr"]), 2)
        )


def _pruned(args: argparse.Namespace, network: str) -> nn.Module:
    """Return the pruned network; made once, and kept beside the runs."""
    file = args.runs / f"{network}-{FLOPS}-auto-{args.seed}.safetensors"
    if not file.exists():
        task = load(network, args.data, "held-out", 1, args.seed)
        slimilar.save(METHODS["auto"][2](task, FLOPS), file)
    return slimilar.load(file, pretrained(network, args.data).model)


def _tuned(
    args: argparse.Namespace, found: Pretrained, small: nn.Module, epochs: int, lr: float
) -> nn.Module:
    """Return the network after some epochs on the first images of all classes; a run is kept, and resumed."""
    images = _images(args.data, found, 0)
    folder = (
        args.runs
        / f"imagenet-{sum(p.numel() for p in small.parameters())}-{epochs}-{lr}-{args.seed}-{args.precision}"
    )
    settings = TrainingSettings(
        args.seed,
        precision=args.precision,
        save_every=10,
        distillation=Distillation(weight=1.0),
        tensorboard=False,
    )
    return finetune(
        small, images, replace(TUNING, epochs=epochs, lr=lr), teacher=found.model, folder=folder, resume=True,
        settings=settings,
    ).model  # fmt: skip


def _images(folder: Path, found: Pretrained, place: int) -> Any:
    """Return the images that stand at a place in the folder of their class."""
    files = image_folder(folder / "imagenet").normalised(found.normalisation)
    turn = torch.tensor([int((files.labels[:i] == label).sum()) for i, label in enumerate(files.labels)])
    return files.at(torch.nonzero(turn == place).flatten())


@torch.no_grad()
def _scored(args: argparse.Namespace, found: Pretrained, model: nn.Module, place: int) -> Row:
    """Return top-1 accuracy and agreement with the original in %."""
    images = _images(args.data, found, place)
    answers: list[Tensor] = []
    right = same = 0
    for part in torch.arange(len(images)).split(25):
        x, y = images.batch(part)
        answers = [network(x).argmax(1) for network in (model, found.model)]
        right += int((answers[0] == y).sum())
        same += int((answers[0] == answers[1]).sum())
    return {
        "accuracy": round(100 * right / len(images), 2), "agreement": round(100 * same / len(images), 2),
        "images": len(images),
    }  # fmt: skip


def _table(rows: list[Row]) -> str:
    lines = [
        "# A short fine-tuning of ImageNet networks",
        "",
        "Command: `python benchmarks/finetune_imagenet.py --data FOLDER`; versions and commits in the .jsonl file.",
        "Pruned with 256 unlabelled images to 75 % of the FLOPs, then trained on 1,000, one of every class, with the",
        "original as teacher and no labels. Epochs and rate were chosen on the `held-out` images (1,000); the `test`",
        "images (1,000) were scored on once. Trained in bfloat16 mixed precision (`--precision bfloat16`), one seed.",
        "",
        "| network | images | epochs | rate | top-1, % | agreement, % |",
        "|---|---|---|---|---|---|",
    ]
    for r in sorted(rows, key=lambda r: (r["network"], r["part"], r.get("epochs", -1), r.get("lr", 0))):
        what = "before pruning" if "epochs" not in r else r["epochs"] or "pruned, not trained"
        trained = f"{r['network']} | {r['part']} | {what} | {r.get('lr') or ''}"
        lines.append(f"| {trained} | {r['accuracy']:.2f} | {r['agreement']:.2f} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
