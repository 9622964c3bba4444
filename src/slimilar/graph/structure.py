"""What a model's channels are: the result of tracing, grouping and probing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from slimilar.graph.assumptions import Assumptions
from slimilar.graph.groups import Grouping
from slimilar.graph.records import Trace


@dataclass(frozen=True, eq=False)
class Structure:
    """A trace that holds at other widths, its groups, and the assumptions under which they were found."""

    trace: Trace
    grouping: Grouping
    assumptions: Assumptions
    branches: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """Groups that may lose all channels, because they are a residual branch; with those that only they read."""
