"""Removal steps of equal height, put apart so that a budget can be met step by step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from slimilar.similarity.removal_order import RemovalOrder

_GAP = 1e-12


def untied(orders: Sequence[RemovalOrder]) -> tuple[RemovalOrder, ...]:
    """Return orders in which steps of one height differ by next to nothing, the groups taking turns.

    So a budget can be met step by step where a criterion finds no difference, as among channels that are always zero.

    >>> a = RemovalOrder(removed=[0, 1], heights=[0.0, 0.0], representative=[-1, -1])
    >>> [order.heights.tolist() for order in untied([a, a])]
    [[0.0, 2e-12], [1e-12, 3e-12]]
    """
    heights = np.concatenate([np.empty(0), *(o.heights for o in orders)])
    if len(np.unique(heights)) == len(heights):
        return tuple(orders)
    group = np.repeat(np.arange(len(orders)), [len(o) for o in orders])
    _, run, length = np.unique(np.stack([group, heights]), axis=1, return_inverse=True, return_counts=True)
    run = run.reshape(-1)
    turn = np.arange(len(heights)) - np.searchsorted(run, run)  # runs are in order, as heights never fall
    sequence = np.lexsort((group, (turn + 0.5) / length[run], heights))
    level, first, count = np.unique(heights[sequence], return_index=True, return_counts=True)
    room = np.minimum(_GAP, np.diff(level, append=np.inf) / (count + 1))
    place = np.empty(len(heights))
    place[sequence] = (np.arange(len(heights)) - np.repeat(first, count)) * np.repeat(room, count)
    ends = np.cumsum([0, *(len(o) for o in orders)])
    moved = np.where(heights < 1, heights + place, heights)
    return tuple(
        o
        if np.array_equal(moved[a:b], o.heights)
        else RemovalOrder(o.removed, moved[a:b], o.representative, o.damage)
        for o, a, b in zip(orders, ends[:-1], ends[1:], strict=True)
    )
