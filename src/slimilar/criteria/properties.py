"""The properties of criteria as a table: the paper's table 1, from what the methods declare."""

from __future__ import annotations

from collections.abc import Mapping

from slimilar.criteria.base import Facts

_HEAD = (
    "criterion",
    "in the paper",
    "what it does",
    "needs",
    "automatic",
    "pre-trained",
    "reconstruction in its paper",
)
_NEEDS = {
    "nothing": "nothing",
    "images": "unlabelled images",
    "labels": "labelled images",
    "training": "a training phase",
}
_CONSUMERS = {"none": "unchanged", "merge": "read the representative", "least-squares": "least squares"}


def as_markdown(known: Mapping[str, Facts]) -> str:
    """Return the table for some criteria, by name.

    >>> print(as_markdown({"dice": Facts("Channels are removed at random.")}).splitlines()[-1])
    | `dice` | - | Channels are removed at random. | nothing | no | yes | unchanged |
    """
    lines = [_row(_HEAD), "|" + "---|" * len(_HEAD)]
    lines += [_row(_cells(name, facts)) for name, facts in known.items()]
    return "\n".join(lines)


def _cells(name: str, facts: Facts) -> tuple[str, ...]:
    yes = {True: "yes", False: "no"}
    return (
        f"`{name}`",
        facts.tag or "-",
        facts.what,
        _NEEDS[facts.needs],
        yes[facts.automatic],
        yes[facts.pretrained],
        _CONSUMERS.get(facts.reconstruction, facts.reconstruction),
    )


def _row(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"
