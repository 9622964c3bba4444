"""Names that users type: find them, or offer the nearest."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from slimilar.errors import InvalidInput


def choose(name: object, known: Sequence[str], kind: str) -> str:
    """Return a name if it is known; otherwise raise and offer the nearest.

    >>> choose("conv1", ["conv1", "conv2"], "layer")
    'conv1'
    """
    if isinstance(name, str) and name in known:
        return name
    near = difflib.get_close_matches(str(name), known, n=3, cutoff=0.5)
    listed = ", ".join(near or known[:5])
    hint = f"did you mean {listed}?" if near else f"there are for instance {listed}"
    raise InvalidInput(f"{kind} must be one of the {len(known)} known names, got {name!r}: {hint}")
