"""Every batch-norm CNN of torchvision and timm: trace, prune, verify, train one step; the same with Torch-Pruning.

    python benchmarks/zoo.py                # resumes; rows in benchmarks/results/zoo.jsonl
    python benchmarks/zoo.py --all --tasks ours                # also timm's near-duplicates
    python benchmarks/zoo.py --only resnet  # names that contain a word
    python benchmarks/zoo.py --again error,wrong,time-out      # once more what ended so
    python benchmarks/zoo.py --log /tmp/new.jsonl              # from the start, into another file

Each model is tried in a worker process that is replaced when it crashes or takes too long: both tools have the same
limit, in processor time. Architectures without batch norm are tried too, with Slimilar alone: what it does not
support in them it must leave unpruned. Prints the table.
"""

from __future__ import annotations

import argparse
import json
import os
import selectors
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from _results import RESULTS, commit
from _zoo.catalogue import EXPORT_EVERY, Architecture, catalogue, chosen, without_norms
from _zoo.table import table

from slimilar.utils.row_ledger import RowLedger

TASKS = ("ours", "calibrated", "rival", "exported")


class Worker:
    """A process that tries models; a new one is started when the last has died."""

    def __init__(self, seconds: float, memory: int) -> None:
        self.seconds, self.memory = seconds, memory
        self.process: subprocess.Popen[str] | None = None

    def ask(self, task: str, entry: Architecture) -> dict[str, Any]:
        """Return the row of one task."""
        process = self.process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps({"task": task, "entry": asdict(entry)}) + "\n")
        process.stdin.flush()
        line = process.stdout.readline() if self._answers(process) else None
        if line:
            row = dict(json.loads(line))
            if (
                row["status"] == "out of memory"
            ):  # what it held need not come back, and the next would lack it
                self.stop()
            return row
        self.stop()
        return {"status": "crash" if line == "" else "time-out", "seconds": self.seconds}

    def _answers(self, process: subprocess.Popen[str]) -> bool:
        """Wait for a line, for as long as the process has not used up its seconds of processor time."""
        began = processor_seconds(process.pid)
        with selectors.DefaultSelector() as waiting:
            waiting.register(process.stdout, selectors.EVENT_READ)  # type: ignore[arg-type]
            while not waiting.select(1):
                if processor_seconds(process.pid) - began > self.seconds:
                    return False
        return True

    def _start(self) -> subprocess.Popen[str]:
        here = Path(__file__).parent
        path = os.pathsep.join(filter(None, [str(here), os.environ.get("PYTHONPATH")]))
        environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "_zoo.worker", str(self.memory)], cwd=here, env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        return self.process

    def stop(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


def processor_seconds(pid: int) -> float:
    """Return the processor time of a process, which other programs on the machine do not lengthen much (Linux)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def is_wanted(task: str, index: int, entry: Architecture) -> bool:
    """Tell whether a task is for this model: exporting for a sample, and without batch norms only our own."""
    if task in ("ours", "calibrated"):
        return True
    return entry.batch_norms > 0 and (task != "exported" or index % EXPORT_EVERY == 0)


def is_done(row: dict[str, Any] | None, again: set[str], seconds: float) -> bool:
    """Tell whether a row needs no other try; running out of less time than there is now says nothing.

    >>> is_done({"status": "time-out", "limit": 20.0}, set(), 60), is_done({"status": "pass"}, {"error"}, 60)
    (False, True)
    """
    if row is None or row["status"] in again:
        return False
    return not (row["status"] == "time-out" and row["limit"] < seconds)


def newest(rows: list[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the newest row of every model and task."""
    return {(row["model"], row["task"]): row for row in rows}


def main() -> None:
    """Run what is missing and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--all", action="store_true", help="near-duplicates too")
    parser.add_argument("--only", default="", help="names that contain this word")
    parser.add_argument("--norms", choices=("with", "without", "both"), default="both", help="batch norms")
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--again", default="", help="statuses to be tried once more, by comma")
    parser.add_argument("--part", default="0/1", help="1/3: the second of three parts, for several processes")
    parser.add_argument("--seconds", type=float, default=60, help="of processor time for each task")
    parser.add_argument("--memory", type=int, default=16, help="GiB that a model may take")
    parser.add_argument("--log", type=Path, default=RESULTS / "zoo.jsonl", help="the file of the rows")
    parser.add_argument("--table", action="store_true", help="print the table only")
    options = parser.parse_args()
    entries = catalogue(RESULTS / "zoo-catalogue.json")
    if not options.table:
        run([*chosen(entries, options.all), *without_norms(entries)], options)
    print(table(entries, newest(RowLedger(options.log).rows)))


def run(picked: list[Architecture], options: argparse.Namespace) -> None:
    """Try what has no row yet; write each row as soon as it is known."""
    ledger = RowLedger(options.log, stamp={"commit": commit("benchmarks/_zoo")})
    done, again = newest(ledger.rows), set(filter(None, options.again.split(",")))
    part, parts = map(int, options.part.split("/"))
    worker = Worker(options.seconds, options.memory)
    same = {"limit": options.seconds, "memory": options.memory}
    wanted = {"with": (True,), "without": (False,), "both": (True, False)}[options.norms]
    mine = [(i, e) for i, e in list(enumerate(picked))[part::parts] if (e.batch_norms > 0) in wanted]
    try:
        for task in options.tasks.split(","):
            for index, entry in mine:
                if not is_wanted(task, index, entry):
                    continue
                row = done.get((entry.key, task))
                if options.only not in entry.key or is_done(row, again, options.seconds):
                    continue
                row = {"model": entry.key, "task": task, "params": entry.params, **same}
                row |= worker.ask(task, entry)
                ledger.append(row)
                print(
                    f"{entry.key} {task}: {row['status']} {row['seconds']:.1f} s", file=sys.stderr, flush=True
                )
    finally:
        worker.stop()


if __name__ == "__main__":
    main()
