"""Run every shell command of the documentation in a fresh clone, and record how each ended.

    python scripts/docs_commands.py                          clones, installs, runs all pages
    python scripts/docs_commands.py --data FOLDER            also those that need datasets and checkpoints
    python scripts/docs_commands.py --clone FOLDER --only latency.md,export.md

Commands are those in blocks marked `sh` and in code spans. A page's commands run in order, in a folder of its own with
stand-ins for what a reader has: net.py, weights, photos, a saved model. What takes hours runs smaller, or shows only
that it is there; the record says which. Writes benchmarks/results/docs-commands.txt; rows of other pages stay.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from _results import RESULTS, header

from slimilar.utils.atomic import write_text

ROOT = Path(__file__).parents[1]
RECORD = RESULTS / "docs-commands.txt"
PAGES = ("README.md", "docs/*.md", "experiments/README.md", "experiments/fine_tuning.md", "CONTRIBUTING.md")
_PROGRAMS = ("slimilar", "python", "make", "torchrun", "accelerate", "pip")
_COMPLETE = ("demo", "criteria")  # of `slimilar`, without further words; the others are names in a sentence
_LIMIT = 1800  # seconds for one command

# What a reader puts in place of a word in capitals.
_PLACEHOLDERS = {
    "MODEL": "slimilar:demo",
    "FILE": "saved.safetensors",
    "CRITERION": "slimming",
    "FOLDER": "{data}",
}
# Commands that are run in another way: what is typed, what is run, and why.
_SMALLER = (
    (r"make test$", 'make test ARGS="tests/similarity"', "smaller: one folder of tests"),
    (r"make (test-slow|test-zoo|test-engines)$", r"make -n \1", "named only: takes the better part of an hour"),
    (r"make docs-commands$", "make -n docs-commands", "named only: it is what made this record"),
    (r"make package$", "make -n package", "named only: recorded in package.txt"),
    (r"make bench( DATA=\S+)?$", r"make bench\1 ARGS=--list", "listed only: takes hours"),
    (
        r"python benchmarks/(accuracy|finetune|tasks|zoo|latency|onnx_files)\.py.*",
        r"python benchmarks/\1.py --help",
        "help only: takes hours",
    ),
    (r"python benchmarks/(few_images|report)\.py$", r"test -f benchmarks/\1.py", "named only: takes minutes"),
    (r"python -m experiments NAME.*", "python -m experiments bound --scale tiny --out {scratch}/results", "scale tiny"),
    (r"python -m experiments\.(bases|short_recipe).*", r"python -m experiments.\1 --help", "help only: takes hours"),
    (
        r"(.* slimilar:resnet20-cifar10 --data cifar10 --criteria) all .*",
        r"\1 similarity,magnitude-l1 --flops 0.7 --images 64 --train-images 128 --test-images 128 --jobs 2 -o aside",
        "smaller: two criteria, 128 images",
    ),
    (r"slimilar train slimilar:resnet20 (.*)", r"slimilar train slimilar:resnet20 \1 --limit 64 --epochs 1",
     "smaller: 64 images, one epoch"),
    (r"slimilar train MODEL --for CRITERION$",
     "slimilar train slimilar:demo --for slimming --data demo --recipe quick --limit 64 --epochs 1",
     "smaller: 64 images, one epoch"),
    (r"slimilar prune --latency 12ms$", "slimilar prune slimilar:demo --latency 12ms -o by-time", "with a model"),
)  # fmt: skip

_NETWORK = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)

    def forward(self, x):
        return torch.relu(x + self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x))))))


class MyNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU())
        self.blocks = nn.Sequential(Block(32), Block(32))
        self.head = nn.Linear(32, 2)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))
"""
# Runs in the clone's environment, in the folder of a page.
_STAND_INS = """
import torch, numpy as np, slimilar
from PIL import Image
from net import MyNetwork
from slimilar.data import demo_images
from slimilar.models import demo_network
from pathlib import Path

torch.manual_seed(0)
model = MyNetwork()
for module in model.modules():
    if isinstance(module, torch.nn.BatchNorm2d):
        torch.nn.init.normal_(module.weight, 1, 0.3)
        torch.nn.init.normal_(module.bias, 0, 0.3)
torch.save(model.state_dict(), "weights.pt")
torch.save({"state_dict": model.state_dict(), "epoch": 9}, "trained.pt")
for split in ("train", "test"):
    images = demo_images(split)
    for label, name in ((3, "cat"), (5, "dog")):
        folder = Path("photos", split, name)
        folder.mkdir(parents=True)
        for i, pixels in enumerate(images.images[images.labels == label][:24].numpy()):
            Image.fromarray(pixels).save(folder / f"{i}.png")
slimilar.save(demo_network(), "saved.safetensors", source="slimilar:demo")
few = {split: demo_images(split).first(128) for split in ("train", "test")}
np.savez("cifar10.npz", **{f"{axis}_{split}": (d.images if axis == "x" else d.labels).numpy()
                           for split, d in few.items() for axis in "xy"})
"""


@dataclass(frozen=True)
class Command:
    """A command as a page has it, what is run for it, and why that differs."""

    page: str
    text: str
    run: str
    why: str = ""

    @property
    def in_checkout(self) -> bool:
        """Whether it is meant for the top folder of the clone."""
        return self.run.startswith(("make", "python", "pip", "test"))


def commands(page: Path) -> list[Command]:
    """Return the commands of a page in order, each once."""
    text = page.read_text(encoding="utf-8")
    found: list[str] = []
    for block, span in re.findall(r"```sh\n(.*?)```|```.*?```|`([^`]+)`", text, re.DOTALL):
        if block:
            lines = block.replace("\\\n", " ").splitlines()
            found += [line.partition("  #")[0] for line in lines]
        elif _is_command(span):
            found += span.split("; ")
    name = str(page.relative_to(ROOT))
    return [_prepared(name, " ".join(line.split())) for line in dict.fromkeys(found) if line.strip()]


def _is_command(span: str) -> bool:
    words = span.split()
    if not words or words[0] not in _PROGRAMS or len(words) < 2 or "..." in words:
        return False
    if words[0] == "slimilar":
        return len(words) > 2 or words[1] in _COMPLETE
    return not span.startswith("accelerate launch") or len(words) > 2


def _prepared(page: str, text: str) -> Command:
    """Return a command with what is run for it."""
    found = [(re.sub(p, r, text), why) for p, r, why in _SMALLER if re.fullmatch(p, text)]
    run, why = found[0] if found else (text, "")
    return Command(page, text, re.sub(r"\b[A-Z]{4,}\b", lambda w: _PLACEHOLDERS.get(w[0], w[0]), run), why)


def cloned(folder: Path) -> Path:
    """Return a clone of the last commit with an environment of its own."""
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True)
    subprocess.run(["make", "install"], cwd=folder, check=True)
    return folder


def run_page(page: Path, clone: Path, data: Path | None) -> list[str]:
    """Run the commands of a page and return a row for each."""
    wanted = commands(page)
    if not wanted:
        return []
    with tempfile.TemporaryDirectory(prefix="slimilar-docs-") as name:
        scratch = Path(name)
        environment = _environment(clone, data)
        (scratch / "net.py").write_text(_NETWORK, encoding="utf-8")
        subprocess.run(
            [clone / ".venv/bin/python", "-c", _STAND_INS], cwd=scratch, env=environment, check=True
        )
        return [_row(command, scratch, clone, data, environment) for command in wanted]


def _environment(clone: Path, data: Path | None) -> dict[str, str]:
    """Return the variables of a reader's shell, in which the clone's environment is active and no browser opens."""
    outside = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    here = {
        "PATH": f"{clone / '.venv/bin'}:{os.environ['PATH']}", "BROWSER": "true", "COLUMNS": "100",
        "PIP_CONSTRAINT": str(clone / "constraints.txt"),
    }  # fmt: skip
    return outside | here | ({} if data is None else {"SLIMILAR_DATA": str(data)})


def _row(command: Command, scratch: Path, clone: Path, data: Path | None, environment: dict[str, str]) -> str:
    if data is None and ("{data}" in command.run or "cifar10 --data cifar10" in command.run):
        return _told("-", 0, command, "left out: needs --data FOLDER")
    line = command.run.replace("{data}", str(data)).replace("{scratch}", str(scratch))
    place = clone if command.in_checkout else scratch
    start = time.perf_counter()
    try:
        done = subprocess.run(
            line, shell=True, executable="/bin/bash", cwd=place, env=environment, capture_output=True, text=True,
            timeout=_LIMIT,
        )  # fmt: skip
        code, said = str(done.returncode), done.stdout + done.stderr
    except subprocess.TimeoutExpired:
        code, said = "time", f"no end after {_LIMIT} s"
    row = _told(code, time.perf_counter() - start, command, command.why)
    print(row if code == "0" else f"{row}\n{said[-3000:]}", flush=True)
    return row


def _told(code: str, seconds: float, command: Command, note: str) -> str:
    return f"{code:>4} {seconds:7.1f}   {command.page:<27} {command.text}" + (f"   [{note}]" if note else "")


def record(rows: dict[str, list[str]]) -> None:
    """Write the rows of the pages that were run; those of others stay."""
    known = RECORD.read_text(encoding="utf-8").splitlines() if RECORD.exists() else []
    others = [row for row in known if row[5:12].strip()[:1].isdigit() and row.split()[2] not in rows]
    order = [str(page.relative_to(ROOT)) for page in pages()]
    found = sorted(
        [*others, *(row for page in rows.values() for row in page)], key=lambda r: order.index(r.split()[2])
    )
    heading = "exit seconds   page                        command"
    write_text(RECORD, "\n".join([header("python scripts/docs_commands.py", 0), "", heading, *found, ""]))


def pages() -> list[Path]:
    """Return the pages of the documentation."""
    return [page for pattern in PAGES for page in sorted(ROOT.glob(pattern))]


def main() -> int:
    """Run all pages, or some; return 1 if a command failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="folder of datasets and checkpoints")
    parser.add_argument("--clone", type=Path, help="a clone with its environment, instead of a new one")
    parser.add_argument("--only", default="", help="names of pages, separated by commas")
    parser.add_argument("--list", action="store_true", help="say what would be run")
    given = parser.parse_args()
    wanted = set(given.only.split(",")) - {""}
    chosen = [
        page for page in pages() if not wanted or page.name in wanted or str(page.relative_to(ROOT)) in wanted
    ]
    if given.list:
        for command in [c for page in chosen for c in commands(page)]:
            print(
                f"{command.page:<27} {command.text}"
                + (f"   [{command.why}] {command.run}" if command.why else "")
            )
        return 0
    failed = False
    with tempfile.TemporaryDirectory(prefix="slimilar-clone-") as folder:
        clone = given.clone.resolve() if given.clone else cloned(Path(folder) / "slimilar")
        data = None if given.data is None else given.data.resolve()
        for page in chosen:
            rows = run_page(page, clone, data)
            record({str(page.relative_to(ROOT)): rows})
            failed |= any(row.split()[0] not in ("0", "-") for row in rows)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
