"""Run the benchmarks one after the other: make bench, or make bench DATA=FOLDER for those that need datasets.

    python scripts/bench.py [--data FOLDER] [--only NAME,...] [--list]

A benchmark that prints its result has it written to benchmarks/results/NAME.txt when it has come to its end; the others
write their files themselves. Those that need what is not given are named, with what they need.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
BENCHMARKS = ROOT / "benchmarks"
RESULTS = BENCHMARKS / "results"


@dataclass(frozen=True)
class Benchmark:
    """A program in benchmarks/, and the options that it cannot do without."""

    file: Path
    needs: frozenset[str]
    prints: bool  # its result, which belongs into a file

    @property
    def result(self) -> Path:
        """The file of what it prints."""
        return RESULTS / f"{self.file.stem}.txt"


def benchmarks() -> list[Benchmark]:
    """Return all programs in benchmarks/."""
    sources = {file: file.read_text(encoding="utf-8") for file in sorted(BENCHMARKS.glob("[a-z]*.py"))}
    return [_described(file, text) for file, text in sources.items() if "__main__" in text]


def _described(file: Path, text: str) -> Benchmark:
    tree = ast.parse(text)
    needs = {
        str(ast.literal_eval(call.args[0]))
        for call in ast.walk(tree)
        if isinstance(call, ast.Call)
        and getattr(call.func, "attr", "") == "add_argument"
        and any(k.arg == "required" and ast.literal_eval(k.value) for k in call.keywords)
    }
    named = f"results/{file.stem}.txt"
    prints = named in (ast.get_docstring(tree) or "") or (BENCHMARKS / named).exists()
    return Benchmark(file, frozenset(needs), prints)


def run(benchmark: Benchmark, words: list[str]) -> None:
    """Run one to its end; a result that is printed replaces the old one only then."""
    command = [sys.executable, str(benchmark.file), *words]
    if not benchmark.prints:
        subprocess.run(command, check=True)
        return
    part = benchmark.result.with_suffix(".txt.part")
    with open(part, "w", encoding="utf-8") as stream:
        subprocess.run(command, check=True, stdout=stream)
    part.replace(benchmark.result)
    print(benchmark.result.read_text(encoding="utf-8"), flush=True)


def main() -> None:
    """Run those that can be run, and name the others."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="folder of datasets and checkpoints")
    parser.add_argument("--only", default="", help="names, separated by commas")
    parser.add_argument("--list", action="store_true", help="say what would be run")
    given = parser.parse_args()
    words = [] if given.data is None else ["--data", str(given.data)]
    wanted = set(given.only.split(",")) - {""}
    for benchmark in benchmarks():
        if wanted and benchmark.file.stem not in wanted:
            continue
        missing = sorted(benchmark.needs - set(words[:1]))
        if missing:
            print(f"{benchmark.file.name}: left out, needs {', '.join(missing)}", flush=True)
            continue
        used = words if "--data" in benchmark.needs else []
        print(f"{benchmark.file.name}: {' '.join(used) or 'as it is'}", flush=True)
        if not given.list:
            run(benchmark, used)


if __name__ == "__main__":
    main()
