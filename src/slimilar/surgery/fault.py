"""Verify a rewrite, and name the group at fault where it does not hold."""

from __future__ import annotations

import numpy as np
from torch import nn

from slimilar.errors import Option, VerificationError
from slimilar.graph.structure import Structure
from slimilar.surgery.retrace import Mismatch, retrace
from slimilar.surgery.rewrite import Kept, operate, surgery
from slimilar.surgery.verify import verify
from slimilar.utils.pytree import Example


def verify_rewrite(
    model: nn.Module, small: nn.Module, example: Example, structure: Structure, kept: Kept
) -> float:
    """Compare a smaller model with the masked original; on a mismatch name the group at fault."""
    try:
        return verify(model, small, example, structure.trace, structure.grouping, kept)
    except Exception as error:
        detail = str(error) if isinstance(error, VerificationError) else f"the smaller model raised: {error}"
        leave_out = Option("exclude", "NAME", "exclude=[...]")
        raise VerificationError(
            f"{detail}; at fault: {_at_fault(model, example, structure, kept)}. Exclude it (",
            leave_out,
            ") and report the model, please",
        ) from error


def _at_fault(model: nn.Module, example: Example, structure: Structure, kept: Kept) -> str:
    """Return the first group whose removal alone does not verify, with what its retrace shows."""
    for start, group in zip(structure.grouping.offsets, structure.grouping.groups, strict=True):
        alone = np.ones_like(kept)
        alone[start : start + group.width] = kept[start : start + group.width]
        if not alone.all() and not _holds(model, example, structure, alone):
            return f"group {group.name}{_shown(model, example, structure, alone)}"
    return "the groups together"


def _holds(model: nn.Module, example: Example, structure: Structure, kept: Kept) -> bool:
    try:
        small = operate(model, surgery(structure.trace, structure.grouping, kept))
        verify(model, small, example, structure.trace, structure.grouping, kept)
    except Exception:  # whatever the user's code raises at another width
        return False
    return True


def _shown(model: nn.Module, example: Example, structure: Structure, kept: Kept) -> str:
    """Return what a retrace finds wrong, in brackets; nothing if it finds nothing."""
    try:
        retrace(model, example, structure, kept)
    except Mismatch as fault:
        return f" ({fault.fact})"
    return ""
