"""Criteria side by side: same start, same budget, same fine-tuning, same seeds.

    terms = Terms(criteria=("similarity", "magnitude-l1"), flops=("0.5", "0.3"), epochs=2)
    found = compare(Subject(model, example, train, test), terms, "comparison")

The folder may be left at any moment, by Ctrl-C or by force; the same call goes on. Rows are written one by one, as
soon as they are known. See docs/compare.md.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from slimilar.comparison import engines, schedule
from slimilar.comparison.engines import ENGINES
from slimilar.comparison.folder import load
from slimilar.comparison.folder import opened as opened_folder
from slimilar.comparison.rows import Baseline, Comparison, ComparisonRow
from slimilar.comparison.schedule import Event
from slimilar.comparison.tasks import entries
from slimilar.comparison.terms import OWN, Opener, Subject, Terms, check, fixed
from slimilar.comparison.under_way import TrainingStatus, under_way
from slimilar.comparison.work import tidy

__all__ = [
    "ENGINES",
    "OWN",
    "Baseline",
    "Comparison",
    "ComparisonRow",
    "Event",
    "Subject",
    "Terms",
    "TrainingStatus",
    "compare",
    "load",
    "under_way",
]


def compare(
    subject: Subject | Opener,
    terms: Terms,
    folder: str | Path,
    *,
    jobs: int = 1,
    threads: int | None = None,
    engine: str = "local",
    command: str | None = None,
    progress: Callable[[Event], None] | None = None,
) -> Comparison:
    """Prune a network by every criterion to every budget, fine-tune alike, and return all that the folder knows.

    What the folder has already is not done again; a call under other terms is refused. `jobs` processes work at
    once with `threads` threads each; with engine="ray" they are those of a cluster that shares the folder. They open
    the subject themselves: where it cannot be pickled, pass a function of a module that returns it.
    """
    place, tell = Path(folder).expanduser(), progress or (lambda event: None)
    opened = subject if isinstance(subject, Subject) else subject()
    check(opened, terms)
    about = {"model": opened.source} | ({} if command is None else {"command": command})
    with opened_folder(place, fixed(opened, terms), about) as rows:
        known, every = rows.by_key, list(entries(terms))
        wanted = [entry for entry in every if entry.key not in known or known[entry.key].error]
        skipped = len(every) - len(wanted)
        if skipped:
            tell(
                Event(skipped, len(every), f"{skipped} of {len(every)} rows are there already", skipped=True)
            )

        def keep(row: ComparisonRow) -> None:
            rows.append(row)
            if row.error is None:
                tidy(place, row)

        if wanted:
            here = jobs == 1 and engine == "local"
            with engines.engine(engine, opened if here else subject, terms, place, jobs, threads) as workers:
                schedule.run(wanted, workers, keep, tell, skipped)
    return load(place)
