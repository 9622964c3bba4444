"""Who reads the channels of each group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slimilar.calibration.consumers import ConsumerLayer, find_consumers, is_conv
from slimilar.calibration.program import Program
from slimilar.criteria.base import CalibrationView
from slimilar.graph.groups import ChannelGroup

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class GroupConsumers:
    """Groups, the first unit of each, all consumers of their channels in network order, and those of each group."""

    groups: Sequence[ChannelGroup]
    starts: Sequence[int]
    all: Sequence[ConsumerLayer]
    of: Sequence[Sequence[ConsumerLayer]]

    @staticmethod
    def find(groups: Sequence[ChannelGroup], calibration: CalibrationView) -> GroupConsumers:
        """Return who reads the channels of some groups of a network."""
        found = find_consumers(calibration.trace, calibration.grouping, calibration.program)
        consumers = [s for s in found if (s.units >= 0).any()]
        places = {
            id(g): start
            for g, start in zip(calibration.grouping.groups, calibration.grouping.offsets, strict=True)
        }
        starts = [places[id(g)] for g in groups]
        of = [
            [s for s in consumers if _units(s, start, g).any()]
            for start, g in zip(starts, groups, strict=True)
        ]
        return GroupConsumers(groups, starts, consumers, of)

    def units(self, g: int, consumer: ConsumerLayer) -> Ints:
        """Return for every position of a consumer the group's unit that stands there, or -1."""
        return np.where(_units(consumer, self.starts[g], self.groups[g]), consumer.units - self.starts[g], -1)

    def refittable(self, program: Program) -> dict[int, int]:
        """Return the groups (by operator) that one consumer alone reads, and nothing else, with a plain kernel."""
        found = {}
        for g, consumers in enumerate(self.of):
            if len(consumers) != 1:
                continue
            consumer = consumers[0]
            instruction, units = program.instructions[consumer.op], self.units(g, consumer)
            fits = is_conv(instruction) or "mm" in instruction.func.name()
            whole = bool((units >= 0).all()) and len(units) == self.groups[g].width
            if whole and fits and consumer.plain and consumer.weight_axis == 1:
                found[consumer.op] = g
        return found


def _units(consumer: ConsumerLayer, start: int, group: ChannelGroup) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = (consumer.units >= start) & (consumer.units < start + group.width)
    return found
