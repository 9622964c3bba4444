"""How the settings of the fit were chosen: one thing changed at a time, on training images that nothing else sees.

    python benchmarks/fit_settings.py --data FOLDER [--networks resnet20-cifar10=0.5,vgg16-cifar10=0.33]

One scan for each network, then a fit with each variant at one share of the FLOPs; 1,024 images, scored on the 5,000
held-out training images of CIFAR-10 (ImageNet: 256, and 1,000 that are neither for calibration nor for the test).
Rows are appended to benchmarks/results/fit_settings.jsonl as soon as they are known and not made again; the table is
the .md file beside it.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from _accuracy.images import load
from _accuracy.table import note, rows
from accuracy import outputs, score

import slimilar
from slimilar.reconstruction.apply import reconstructed_model, settings_for
from slimilar.utils.atomic import write_text

LOG = Path(__file__).parent / "results" / "fit_settings.jsonl"
NETWORKS = "resnet20-cifar10=0.5,vgg16-cifar10=0.33"
MAX_IMAGES, SEED = 5_000, 0
VARIANTS: dict[str, dict[str, Any]] = {  # what is not as is the rule for such a network
    "as it is": {},
    "one step": {"steps": 1},
    "least squares only (no steps behind a ReLU)": {"steps": 0},
    "two steps": {"steps": 2},
    "three steps": {"steps": 3},
    "six steps": {"steps": 6},
    "no horizontal flips": {"mirror": False},
    "no horizontal flips, six steps": {"mirror": False, "steps": 6},
    "a third of the samples": {"effort": 1e10},
    "two steps, effort 1.5e10": {"steps": 2, "effort": 1.5e10},
    "two steps, effort 3e10": {"steps": 2, "effort": 3e10},
    "one step, effort 3e10": {"steps": 1, "effort": 3e10},
    "three times the samples": {"effort": 9e10},
    "eight samples for each unknown": {"rows": 8},
    "ridge 1e-3, towards the kernel as it was": {"ridge": 1e-3, "prior": "kernel"},
    "ridge 1e-4": {"ridge": 1e-4},
    "ridge 1e-2": {"ridge": 1e-2},
    "nobody chooses again": {"choose": "none"},
    "everybody chooses again": {"choose": "all"},
    "the stream is not corrected": {"correct_stream": False},
    "consumers that lose nothing stay as they are": {"polish": False},
    "channels are mixed, kernels not fitted": {"form": "mix"},
    "layers refined together": {"together": True},
    "layers not refined together": {"together": False},
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--networks", default=NETWORKS, help="NAME=SHARE of the FLOPs, by comma")
    parser.add_argument("--variants", default="", help="only those, by semicolon")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    variants = args.variants.split(";") if args.variants else list(VARIANTS)
    for name in set(variants) - set(VARIANTS):
        parser.error(f"--variants must be of {'; '.join(VARIANTS)}, got {name}")
    for item in filter(None, args.networks.split(",")):
        name, _, share = item.partition("=")
        _run(args.data, name, float(share), variants, args.threads)
    write_text(LOG.with_suffix(".md"), _table())


def _run(folder: Path, name: str, flops: float, variants: list[str], threads: int) -> None:
    known = {(r["network"], r["flops"], r["variant"]) for r in rows(LOG)}
    wanted = {v: VARIANTS[v] for v in variants if (name, flops, v) not in known}
    if not wanted:
        return
    task = load(name, folder, "held-out", MAX_IMAGES, SEED)
    before = outputs(task.model, task.x)
    plan = slimilar.analyze(
        task.model, task.example, criterion="span", calibration=task.calibration, seed=SEED
    )
    cut = plan.at(flops=flops, round_to=1)
    for variant, given in wanted.items():
        start = time.process_time()
        settings = replace(settings_for(plan, len(task.calibration), SEED), **given)
        made = reconstructed_model(
            task.model, task.example, plan, cut, "linear", task.calibration, SEED, None, settings
        )
        row = {"network": name, "flops": flops, "variant": variant, "seed": SEED, "threads": threads}
        row |= {"cpu": round(time.process_time() - start, 1)}
        note(LOG, row | score(outputs(made.model.eval(), task.x), before, task.y))


def _table() -> str:
    lines = [
        "# The settings of the fit, one changed at a time",
        "",
        "Command: `python benchmarks/fit_settings.py --data FOLDER`; no fine-tuning; 5,000 held-out training images",
        "of CIFAR-10, 1,000 images of ImageNet that are neither for calibration nor for the test.",
        "Versions and commits in the .jsonl file. The standard error of a difference is about 0.2 points. Rows of",
        "commit 1e691b3 are older than horizontal flips as the rule, and are named by what was done. ResNet-56 knows",
        "these images by heart: look at its divergence. Only the last rows, of layers that are refined together or",
        "not, are of a version that can do so; that of VGG-16 is of one that refined networks without residual",
        "branches too.",
        "",
        "| network | FLOPs left | variant | accuracy | agreement | divergence | CPU seconds |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {r['network']} | {r['flops']:.0%} | {r['variant']} | {r['accuracy']:.2f} | {r['agreement']:.2f} "
        f"| {r['divergence']:.4f} | {r['cpu']:.0f} |"
        for r in rows(LOG)
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
