"""What a trace takes for granted about the user's code, where one forward pass cannot tell.

`x.chunk(2)` and `x.split(64)` look alike at the original width. Each rule starts from its most permissive reading;
where probing (`slimilar.surgery.probe`) shows that a smaller copy of the model goes another way, the reading is
weakened, and the model traced again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Signature = tuple[
    str, str, int
]  # operator, place in the code (the same for repeated blocks), turn at that place


@dataclass(frozen=True)
class HeldNumber:
    """A whole number that the modules at a place in the code hold, by attribute and entry of a list."""

    place: str
    attribute: str
    item: int | None


@dataclass(frozen=True)
class Assumptions:
    """How each operator and layer is read; see the module's docstring."""

    levels: Mapping[Signature, int] = field(default_factory=dict)  # how far an operator's reading is weakened
    held_sizes: frozenset[Signature] = (
        frozenset()
    )  # operators whose module holds a size that has to shrink with them
    by_chance: frozenset[HeldNumber] = frozenset()  # numbers that equal a size and do not shrink with it
    fixed_operators: frozenset[Signature] = frozenset()  # operators that only work at the original widths
    fixed_layers: frozenset[str] = frozenset()  # layers whose width the code depends on, no one knows where
    selections: frozenset[str] = frozenset()  # batch norms that choose their own part of a residual stream
