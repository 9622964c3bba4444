"""A comparison as a table: one line for each criterion and reconstruction, averaged over the seeds."""

from __future__ import annotations

import csv
import dataclasses
import io
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from slimilar.comparison.rows import Comparison, ComparisonRow
from slimilar.planning.cost import human

HEADINGS = (
    "criterion", "reconstruction", "FLOPs left", "parameters left", "epochs before", "accuracy then",
    "after pruning", "after fine-tuning", "choosing", "pruning", "training",
)  # fmt: skip


@dataclass(frozen=True)
class Line:
    """Rows that differ in their seed only."""

    criterion: str
    substitute: str
    own: bool
    budget: str
    rows: tuple[ComparisonRow, ...]

    def mean(self, field: str) -> float | None:
        """Return the mean of a number over the seeds; None where a row does not have it."""
        values = [getattr(row, field) for row in self.rows]
        return None if None in values else statistics.fmean(values)

    def spread(self, field: str) -> float | None:
        """Return its standard deviation over the seeds; None where there is one seed only."""
        values = [getattr(row, field) for row in self.rows]
        return None if None in values or len(values) < 2 else statistics.stdev(values)

    @property
    def name(self) -> str:
        """The name of the reconstruction, marked where it is the criterion's own."""
        return f"{self.substitute} (own)" if self.own else self.substitute


def lines(rows: Iterable[ComparisonRow]) -> list[Line]:
    """Return rows gathered over seeds, without failures; by budget from loose to tight, the most accurate first."""
    found: dict[tuple[str, str, bool, str], list[ComparisonRow]] = {}
    for row in rows:
        if row.error is None:
            found.setdefault((row.criterion, row.substitute, row.own, row.budget), []).append(row)
    every = [Line(*key, tuple(rows)) for key, rows in found.items()]
    loose = {
        budget: max(line.mean("flops_share") or 0 for line in every if line.budget == budget)
        for budget in {line.budget for line in every}
    }
    return sorted(every, key=lambda line: (-loose[line.budget], line.budget, -(line.mean("final") or 0)))


def cells(line: Line) -> list[str]:
    """Return the cells of a line of the table."""
    epochs = f"{line.mean('extra_epochs'):.0f}"
    return [
        line.criterion, line.name,
        _share(line, "flops_share"), _share(line, "params_share"),
        epochs, _share(line, "prepared") if epochs != "0" else "",
        _share(line, "pruned", 2), _share(line, "tuned", 2),
        *(_seconds(line, f"{what}_seconds") for what in ("choose", "prune", "train")),
    ]  # fmt: skip


def without_empty(
    headings: Sequence[str], rows: Sequence[Sequence[str]]
) -> tuple[list[str], list[list[str]]]:
    """Return a table without the columns in which no row says anything, such as training where there was none.

    >>> without_empty(["criterion", "after", "training"], [["span", "90.1", "0 s"], ["random", "", "0 s"]])
    (['criterion', 'after'], [['span', '90.1'], ['random', '']])
    """
    told = [i for i in range(len(headings)) if any(row[i] not in ("", "0", "0 s") for row in rows)]
    return [headings[i] for i in told], [[row[i] for i in told] for row in rows]


def _share(line: Line, field: str, digits: int = 1) -> str:
    mean, spread = line.mean(field), line.spread(field)
    if mean is None:
        return ""
    return f"{100 * mean:.{digits}f}" + (f" ± {100 * spread:.{digits}f}" if spread is not None else "")


def _seconds(line: Line, field: str) -> str:
    more = "> " if any(row.resumed for row in line.rows) and field == "train_seconds" else ""
    return f"{more}{line.mean(field):.0f} s"


def margin(share: float, count: int) -> float:
    """Return half the width of the 95 % interval of a share.

    >>> round(margin(0.9, 10_000), 4)
    0.0059
    """
    return 1.959964 * math.sqrt(share * (1 - share) / count)


def markdown(found: Comparison) -> str:
    """Return the whole comparison as a page: its terms, a table for each budget, what failed."""
    parts = ["# Criteria side by side", *_about(found)]
    every = lines(found.rows)
    for budget in dict.fromkeys(line.budget for line in every):
        parts.append(f"## FLOPs budget {budget}")
        parts.append(
            _table(*without_empty(HEADINGS, [cells(line) for line in every if line.budget == budget]))
        )
    errors = [row for row in found.rows if row.error is not None]
    if errors:
        parts.append("## Not reached")
        rows = [[r.criterion, r.substitute, r.budget, str(r.seed), r.error or ""] for r in errors]
        parts.append(_table(("criterion", "reconstruction", "budget", "seed", "why"), rows))
    return "\n\n".join(parts) + "\n"


def _about(found: Comparison) -> list[str]:
    """Return the terms in sentences."""
    terms, parts = found.header["terms"], []
    if "command" in found.header:
        parts.append(f"Command: `{found.header['command']}`")
    if found.baseline is not None:
        start = found.baseline
        parts.append(
            f"All rows start from the same network: accuracy {start.accuracy:.2%} on {start.images:,} test "
            f"images (±{100 * margin(start.accuracy, start.images):.2f} points of sampling), "
            f"{human(start.flops)} FLOPs, {human(start.params)} parameters."
        )
    trained = terms["training images"].partition(",")[0]
    others = "as many plain ones" if terms["plain epochs"] else "none"
    parts.append(
        f"Accuracies, FLOPs and parameters in %. Fine-tuning: {terms['epochs']} epoch(s) of {int(trained):,} training "
        f"images, learning rate {terms['recipe']['lr']:g}, {terms['recipe']['schedule']}. Criteria with a training "
        f"phase had {terms['sparse epochs']} epoch(s) of it before pruning, the others {others}. Calibration: "
        f"{terms['calibration images']} training images. Seeds: {_listed({row.seed for row in found.rows})}. "
        "`(own)` marks the reconstruction of the criterion's own paper. Seconds depend on the machine and its load."
    )
    made = ", ".join(f"{name} {version}" for name, version in found.header["made by"].items())
    return [*parts, f"Made by {made}."]


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(numbers)))


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    ruler = ["---" if i < 2 else "---:" for i in range(len(headings))]
    every = [headings, ruler, *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in every)


def as_csv(rows: Iterable[ComparisonRow]) -> str:
    """Return all rows as comma-separated values."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = [field.name for field in dataclasses.fields(ComparisonRow)]
    writer.writerow(names)
    writer.writerows([getattr(row, name) for name in names] for row in rows)
    return text.getvalue()
