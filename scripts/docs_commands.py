"""Run every shell command of the documentation in a fresh clone, and record how each ended.

    python scripts/docs_commands.py                          clones, installs, runs all pages
    python scripts/docs_commands.py --data FOLDER            also those that need datasets and checkpoints
    python scripts/docs_commands.py --clone FOLDER --only latency.md,export.md
    python scripts/docs_commands.py --missing                only commands without a row that ended with 0

Commands are those in blocks marked `sh` and in code spans. A page's commands run in order, in a folder of its own with
what scripts/stand_ins.py writes for a reader's files: net.py, weights, photos, a saved model. What takes hours runs
smaller, or shows only that it is there; the record says which. Writes benchmarks/results/docs-commands.txt: every row
has the commit that the clone was at; rows of other commands stay, as long as a page has these commands.
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
_ONE_FOLDER = "smaller: one folder of tests"
# Commands that are run in another way: what is typed, what is run, and why.
_SMALLER = (
    (r"make test$", 'make test ARGS="tests/similarity"', _ONE_FOLDER),
    (r"make (test-slow|test-zoo|test-engines)$", r"make -n \1", "named only: takes the better part of an hour"),
    (r'make test ARGS="-k similarity"$', 'make test ARGS="-k similarity tests/similarity"', _ONE_FOLDER),
    (r"make site-walk$", "make -n site-walk", "named only: takes minutes of a browser"),
    (r"make screenshots$", "make -n screenshots", "named only: it would draw the images of the documentation anew"),
    (r"make docs-commands$", "make -n docs-commands", "named only: it is what made this record"),
    (r"make package$", "make -n package", "named only: recorded in package.txt"),
    (r"make bench( DATA=\S+)?$", r"make bench\1 ARGS=--list", "listed only: takes hours"),
    (
        r"python benchmarks/(accuracy|finetune|tasks|zoo|latency|onnx_files|onnx_round_trips)\.py.*",
        r"python benchmarks/\1.py --help",
        "help only: takes hours",
    ),
    (r"python benchmarks/(int8|speed)\.py$", r"python benchmarks/\1.py --help", "help only: takes minutes"),
    (r"python benchmarks/(few_images|report|widths)\.py$", r"test -f benchmarks/\1.py", "named only: takes minutes"),
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
    (r"(slimilar reproduce .*) --out results$", r"\1 --out {scratch}/results", "with its results elsewhere"),
    (r"accelerate launch (.*)", r"accelerate-launch \1",
     "by its other name: `accelerate` itself also imports timm and torchvision"),
    (r"slimilar prune --latency 12ms$", "slimilar prune slimilar:demo --latency 12ms -o by-time", "with a model"),
)  # fmt: skip


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
        return self.run.startswith(("make", "python", "pip", "test", "slimilar reproduce"))


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


@dataclass(frozen=True)
class Workplace:
    """Where the commands of a page run."""

    clone: Path
    commit: str  # of the clone when the page began
    scratch: Path  # the page's own folder
    data: Path | None
    environment: dict[str, str]


def run_page(wanted: list[Command], clone: Path, data: Path | None) -> list[str]:
    """Run commands of a page and return a row for each."""
    if not wanted:
        return []
    with tempfile.TemporaryDirectory(prefix="slimilar-docs-") as name:
        place = Workplace(clone, _commit(clone), Path(name), data, _environment(clone, data))
        stand_ins = [clone / ".venv/bin/python", clone / "scripts/stand_ins.py", place.scratch]
        subprocess.run(stand_ins, env=place.environment, check=True)
        return [_row(command, place) for command in wanted]


def _commit(clone: Path) -> str:
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=clone, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def _environment(clone: Path, data: Path | None) -> dict[str, str]:
    """Return the variables of a reader's shell, in which the clone's environment is active and no browser opens."""
    own = ("PYTHONPATH", "VIRTUAL_ENV", "MAKEFLAGS", "MAKEOVERRIDES", "MAKELEVEL", "ARGS", "DATA")
    outside = {name: value for name, value in os.environ.items() if name not in own}
    here = {
        "PATH": f"{clone / '.venv/bin'}:{os.environ['PATH']}", "BROWSER": "true", "COLUMNS": "100",
        "PIP_CONSTRAINT": str(clone / "constraints.txt"),
    }  # fmt: skip
    return outside | here | ({} if data is None else {"SLIMILAR_DATA": str(data)})


def _row(command: Command, place: Workplace) -> str:
    if place.data is None and ("{data}" in command.run or "cifar10 --data cifar10" in command.run):
        return _told("-", 0, place, command, "left out: needs --data FOLDER")
    line = command.run.replace("{data}", str(place.data)).replace("{scratch}", str(place.scratch))
    start = time.perf_counter()
    try:
        done = subprocess.run(
            line, shell=True, executable="/bin/bash", cwd=place.clone if command.in_checkout else place.scratch,
            env=place.environment, capture_output=True, text=True, timeout=_LIMIT,
        )  # fmt: skip
        code, said = str(done.returncode), done.stdout + done.stderr
    except subprocess.TimeoutExpired:
        code, said = "time", f"no end after {_LIMIT} s"
    row = _told(code, time.perf_counter() - start, place, command, command.why)
    print(row if code == "0" else f"{row}\n{said[-3000:]}", flush=True)
    return row


_HEADING = "exit seconds   commit    page                        command"


def _told(code: str, seconds: float, place: Workplace, command: Command, note: str) -> str:
    row = f"{code:>4} {seconds:7.1f}   {place.commit:<9} {command.page:<27} {command.text}"
    return row + (f"   [{note}]" if note else "")


def _named(row: str) -> tuple[str, str]:
    """Return the page and the command of a row."""
    _, _, _, page, text = row.split(maxsplit=4)
    return page, text.partition("   [")[0]


def noted() -> dict[tuple[str, str], str]:
    """Return the rows of the record by page and command."""
    known = RECORD.read_text(encoding="utf-8").splitlines() if RECORD.exists() else []
    rows = known[known.index(_HEADING) + 1 :] if _HEADING in known else []
    return {_named(row): row for row in rows if row}


def record(rows: list[str]) -> None:
    """Write rows in the order of the pages; those of other commands stay, as long as a page has these commands."""
    found = noted() | {_named(row): row for row in rows}
    order = [(command.page, command.text) for page in pages() for command in commands(page)]
    lines = [found[name] for name in order if name in found]
    write_text(RECORD, "\n".join([header("python scripts/docs_commands.py", 0), "", _HEADING, *lines, ""]))


def missing(wanted: list[Command]) -> list[Command]:
    """Return the commands without a row that ended with 0."""
    ended = {name for name, row in noted().items() if row.split()[0] == "0"}
    return [command for command in wanted if (command.page, command.text) not in ended]


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
    parser.add_argument(
        "--missing", action="store_true", help="only commands without a row that ended with 0"
    )
    parser.add_argument("--list", action="store_true", help="say what would be run")
    given = parser.parse_args()
    wanted = set(given.only.split(",")) - {""}
    paths = {str(page.relative_to(ROOT)): page for page in pages()}
    names = wanted - set(paths)  # README.md is one page, though another folder has one too
    chosen = [page for path, page in paths.items() if not wanted or path in wanted or page.name in names]
    todo = [missing(commands(page)) if given.missing else commands(page) for page in chosen]
    if given.list:
        for command in [c for page in todo for c in page]:
            print(
                f"{command.page:<27} {command.text}"
                + (f"   [{command.why}] {command.run}" if command.why else "")
            )
        return 0
    failed = False
    with tempfile.TemporaryDirectory(prefix="slimilar-clone-") as folder:
        clone = given.clone.resolve() if given.clone else cloned(Path(folder) / "slimilar")
        data = None if given.data is None else given.data.resolve()
        for page_commands in todo:
            rows = run_page(page_commands, clone, data)
            record(rows)
            failed |= any(row.split()[0] not in ("0", "-") for row in rows)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
