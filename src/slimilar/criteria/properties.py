"""The properties of criteria as a table: what the paper's table 1 says of the methods, from their declarations."""

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
    "its paper's consumers",
)
_NEEDS = {
    "nothing": "nothing",
    "images": "unlabelled images",
    "labels": "labelled images",
    "training": "a training phase",
}
_READERS = {"none": "do nothing", "merge": "read the stand-in", "linear": "are fitted by least squares"}


def as_markdown(known: Mapping[str, Facts]) -> str:
    """Return the table for some criteria, by name.

    >>> print(as_markdown({"dice": Facts("Channels leave by lot.")}).splitlines()[-1])
    | `dice` | - | Channels leave by lot. | nothing | no | yes | do nothing |
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
        _READERS.get(facts.substitute, facts.substitute),
    )


def _row(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"
