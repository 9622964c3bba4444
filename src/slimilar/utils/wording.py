"""Phrases that several messages are made of."""

from __future__ import annotations

from collections.abc import Sequence


def listed(names: Sequence[str], most: int = 3) -> str:
    """Return names for a sentence: all of them, or the first ones and how many more there are.

    >>> listed(["conv1", "conv2"]), listed(["a", "b", "c", "d"])
    ('conv1, conv2', 'a, b and 2 more')
    """
    shown = list(names) if len(names) <= most else list(names[: most - 1])
    more = f" and {len(names) - len(shown)} more" if len(shown) < len(names) else ""
    return ", ".join(shown) + more
