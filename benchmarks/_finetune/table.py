"""The table of the fine-tuning benchmark."""

from __future__ import annotations

from statistics import mean, stdev
from typing import Any

Row = dict[str, Any]
ALL = 45_000  # images of a whole epoch
_SETTING = ("network", "flops", "start", "tuning", "epochs", "training images", "precision")
STARTS = {
    "ours": "span, linear, fitted to 1,024 images (ours, an earlier version)",
    "auto": "prune(), fitted to 1,024 images (ours)",
    "none": "similarity, plain removal (the paper)",
    "grail": "GRAIL, fitted to 1,024 images",
    "torch-pruning": "Torch-Pruning, magnitude",
    "folding": "Model Folding",
}
_READING = """# Fine-tuning after pruning

Command: `python benchmarks/finetune.py --data FOLDER`; rows with seeds, versions and commits in finetune.jsonl.
Accuracy in % on all 10,000 test images of CIFAR-10, after one cycle of so many epochs of 45,000 training images
(fewer where a row says so; crop and flip, batches of 64, gradients clipped to a norm of 1). All networks of a block
have the same FLOPs.
CPU minutes are those of one thread of a shared machine. Rows marked `bfloat16` computed the convolutions of the
training in mixed precision, which takes about 0.6 of the time; scores are always computed in float32.

- `reconstructed`: the recipe of that name (no dropout, rate 0.03, mixup from 900 steps on), 70 % of the loss from the
  scores of the network before pruning, 30 % from the labels. `reconstructed, no mixup`: without it; one epoch has
  703 steps. `reconstructed, frozen`: with frozen statistics of batch norms, an earlier recipe.
  `reconstructed, no labels`: all from the scores.
- `plain`: new statistics, labels alone. `plain, teacher`: with the same teacher as `reconstructed`.
"""
_CHOICE = """
## Settings, chosen on another network

Command: `python benchmarks/finetune.py --data FOLDER --choose`. ResNet-56 on CIFAR-100 (72.63 %) at half of its FLOPs,
so many passes over so many training images, scored on 5,000 test images. `frozen`: statistics of batch norms frozen, no
dropout; `taught`: new statistics; both with the teacher. `teacher alone`: no labels. `mixup`: images are blended by
twos, to be compared with rows of the same seed. `plain`: new statistics, labels alone. Rows of seed 1 are of a later
version, from a better start.

| start | training images | epochs | setting | seed | pruned | tuned |
|---|---|---|---|---|---|---|
"""


def table(rows: list[Row], trials: list[Row]) -> str:
    """Return the page: results by network and epochs, the best first, then what settings were chosen from."""
    lines = [
        _READING,
        "| network | FLOPs left | epochs | start | tuning | before | pruned | tuned | lost | CPU minutes |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    lines += map(_line, sorted(_by_setting(rows), key=_place))
    choice = [
        _trial(r)
        for r in sorted(
            trials, key=lambda r: (r["start"], r["training images"] * r["epochs"], -r["accuracy"])
        )
    ]
    return "\n".join(lines) + "\n" + (_CHOICE + "\n".join(choice) + "\n" if choice else "")


def _by_setting(rows: list[Row]) -> list[list[Row]]:
    """Return the rows that differ in nothing but the seed, together."""
    together: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        together.setdefault(tuple(row[k] for k in _SETTING), []).append(row)
    return list(together.values())


def _place(found: list[Row]) -> tuple[str, int, float]:
    row = found[0]
    return row["network"], row["epochs"] * row["training images"], -mean(r["accuracy"] for r in found)


def _line(found: list[Row]) -> str:
    row = found[0]
    whole = row["training images"] == ALL
    epochs = f"{row['epochs']}" if whole else f"{row['epochs']} of {row['training images']:,} images"
    before, pruned, tuned, cpu = (mean(r[k] for r in found) for k in ("before", "pruned", "accuracy", "cpu"))
    tuning = row["tuning"] + (", bfloat16" if row["precision"] == "bfloat16" else "")
    spread = f" ± {stdev(r['accuracy'] for r in found):.2f} ({len(found)} seeds)" if len(found) > 1 else ""
    return (
        f"| {row['network']} | {row['flops']:.0%} | {epochs} | {STARTS[row['start']]} | {tuning} | "
        f"{before:.2f} | {pruned:.2f} | {tuned:.2f}{spread} | {before - tuned:.2f} | {cpu / 60:.0f} |"
    )


def _trial(row: Row) -> str:
    tuning = row["tuning"] + (", bfloat16" if row["precision"] == "bfloat16" else "")
    what = f"{STARTS[row['start']]} | {row['training images']:,} | {row['epochs']} | {tuning} | {row['seed']}"
    return f"| {what} | {row['pruned']:.2f} | {row['accuracy']:.2f} |"
