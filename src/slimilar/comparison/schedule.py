"""Which piece of work comes next: the first that has all it needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from slimilar.comparison.engines import Engine, Failed
from slimilar.comparison.rows import ComparisonRow
from slimilar.comparison.tasks import Entry, Task, in_order, needed


@dataclass(frozen=True)
class Event:
    """Told while a comparison is under way: what begins, or the row that came out."""

    done: int  # rows
    total: int
    title: str
    row: ComparisonRow | None = None
    skipped: bool = False  # whether it speaks of rows that were there before


Tell = Callable[[Event], None]


def run(
    wanted: list[Entry], engine: Engine, keep: Callable[[ComparisonRow], None], tell: Tell, skipped: int
) -> None:
    """Do all that some rows need; `keep` gets each row as soon as it is known."""
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
                tell(Event(done, total, task.title))
            elif reason is None:
                continue
            else:
                failures[task] = reason
                done += _finish(task, Failed(reason), done, total, keep, tell)
            waiting.remove(task)
        if running:
            task, outcome = engine.next()
            running.remove(task)
            if isinstance(outcome, Failed):
                failures[task] = outcome.reason
            done += _finish(task, outcome, done, total, keep, tell)


def _finish(
    task: Task,
    outcome: ComparisonRow | Failed | None,
    done: int,
    total: int,
    keep: Callable[[ComparisonRow], None],
    tell: Tell,
) -> int:
    """Keep the row of a task, be it only that there is none; return how many rows that makes."""
    if not isinstance(task, Entry):
        return 0
    row = outcome if isinstance(outcome, ComparisonRow) else failed(task, outcome)
    keep(row)
    tell(Event(done + 1, total, task.title, row))
    return 1


def failed(task: Entry, outcome: Failed | None) -> ComparisonRow:
    """Return the row of a network that could not be made."""
    reason = outcome.reason if outcome else "nothing came back"
    return ComparisonRow(
        task.key, task.criterion, task.substitute, task.own, task.budget, task.seed, error=reason
    )
