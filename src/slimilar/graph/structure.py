"""What a model's channels are: the result of tracing, grouping and probing."""

from __future__ import annotations

from dataclasses import dataclass

from slimilar.graph.assumptions import Assumptions
from slimilar.graph.groups import Grouping
from slimilar.graph.records import Trace


@dataclass(frozen=True, eq=False)
class Structure:
    """A trace that holds at other widths, its groups, and the assumptions under which they were found."""

    trace: Trace
    grouping: Grouping
    assumptions: Assumptions
