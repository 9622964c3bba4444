"""What is done with the labels while a model runs.

There are two policies. `Collector` labels the original model and collects what its rules find. `Checker`
(`slimilar.surgery.retrace`) runs a smaller copy with the original's labels, and checks that each arrives where it did.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

from slimilar.graph.labels import Labels
from slimilar.graph.reasons import Reason
from slimilar.graph.records import Fact, Op

if TYPE_CHECKING:
    from slimilar.graph.rules.table import Call


class LabelPolicy(Protocol):
    """What rules report to (the first seven methods), and what the recorder asks (the others)."""

    def tie(self, a: Tensor, b: Tensor, sums: bool = False) -> None:
        """Tie labels that meet, position by position; `sums` if two streams are added."""

    def bind(self, a: Tensor, b: Tensor) -> None:
        """Tie labels that do not meet, because the code is assumed to treat them alike."""

    def merge(self, factor: Tensor, axes: Sequence[int]) -> Tensor:
        """Bind all labels along some axes to the first ones there, and return these."""

    def freeze(self, labels: Labels, why: Reason) -> None:
        """Keep these channels, and note why."""

    def note(self, fact: Fact) -> None:
        """Note a fact about the model."""

    def is_frozen(self, factor: Tensor) -> bool:
        """Tell whether all channels of a factor are known to stay."""

    def original_groups(self, call: Call) -> tuple[int, int]:
        """Return the number of groups and of input channels that a convolution has at the original widths."""

    def enter(self, name: str, shape: tuple[int, ...]) -> Labels:
        """Return the labels of a parameter or buffer that an operator meets for the first time."""

    def label(self, call: Call) -> list[Labels]:
        """Return the labels of every output of a call."""

    def settle(self, labels: Labels) -> Labels:
        """Return the labels that an output keeps, of those that its rule found."""

    def recorded(self, op: Op, labels: list[Labels]) -> None:
        """Take notice of an operator that has been recorded, and of the labels of its outputs."""
