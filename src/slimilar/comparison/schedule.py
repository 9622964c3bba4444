"""The order of tasks: the first whose prerequisites are done is next."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from slimilar.comparison.engines import Engine, Failed
from slimilar.comparison.rows import ComparisonRow
from slimilar.comparison.tasks import Entry, Task, in_order, needed


@dataclass(frozen=True)
class Event:
    """Progress of a comparison: a task that begins, or the row that it made."""

    done: int  # rows
    total: int
    title: str
    row: ComparisonRow | None = None
    skipped: bool = False  # whether these rows were known before


Report = Callable[[Event], None]


def run(
    wanted: list[Entry], engine: Engine, keep: Callable[[ComparisonRow], None], report: Report, skipped: int
) -> None:
    """Perform all tasks that the wanted rows need; `keep` is called with each row as soon as it is known."""
    waiting, running = in_order(wanted), set[Task]()
    failures: dict[Task, str] = {}
    total, done = skipped + len(wanted), skipped
    while waiting or running:
        open_tasks = running | set(waiting)
        for task in [t for t in waiting if not open_tasks.intersection(needed(t))]:
            reason = next((failures[n] for n in needed(task) if n in failures), None)
            if reason is None and len(running) < engine.capacity:
                engine.submit(task)
                running.add(task)
                report(Event(done, total, task.title))
            elif reason is None:
                continue
            else:
                failures[task] = reason
                done += _finish(task, Failed(reason), done, total, keep, report)
            waiting.remove(task)
        if running:
            task, outcome = engine.next()
            running.remove(task)
            if isinstance(outcome, Failed):
                failures[task] = outcome.reason
            done += _finish(task, outcome, done, total, keep, report)


def _finish(
    task: Task,
    outcome: ComparisonRow | Failed | None,
    done: int,
    total: int,
    keep: Callable[[ComparisonRow], None],
    report: Report,
) -> int:
    """Keep the row of a task, also of a failed one; return the number of rows kept."""
    if not isinstance(task, Entry):
        return 0
    row = outcome if isinstance(outcome, ComparisonRow) else failed(task, outcome)
    keep(row)
    report(Event(done + 1, total, task.title, row))
    return 1


def failed(task: Entry, outcome: Failed | None) -> ComparisonRow:
    """Return the row of a network that could not be made."""
    reason = outcome.reason if outcome else "no result was returned"
    return ComparisonRow(
        task.key, task.criterion, task.substitute, task.own, task.budget, task.seed, error=reason
    )
