"""Compare a rewritten model with the masked original, and name the group at fault where they differ."""

from __future__ import annotations

import numpy as np
from torch import nn

from slimilar.errors import Option, VerificationError
from slimilar.graph.structure import Structure
from slimilar.surgery.retrace import Mismatch, retrace
from slimilar.surgery.rewrite import Kept, operate, surgery
from slimilar.surgery.verify import verify as compare
from slimilar.utils.pytree import Example


def verify_rewrite(
    model: nn.Module, small: nn.Module, example: Example, structure: Structure, mask: Kept
) -> float:
    """Compare with the masked original; on a mismatch name the group at fault."""
    try:
        return compare(model, small, example, structure.trace, structure.grouping, mask)
    except Exception as error:
        at_fault = _at_fault(model, example, structure, mask)
        detail = str(error) if isinstance(error, VerificationError) else f"the smaller model raised: {error}"
        leave_out = Option("exclude", "NAME", "exclude=[...]")
        raise VerificationError(
            f"{detail}; at fault: {at_fault}. Exclude it (", leave_out, ") and report the model, please"
        ) from error


def _at_fault(model: nn.Module, example: Example, structure: Structure, mask: Kept) -> str:
    """Return the first group whose removal alone does not keep the channels in their place."""
    for start, group in zip(structure.grouping.offsets, structure.grouping.groups, strict=True):
        alone = np.ones_like(mask)
        alone[start : start + group.width] = mask[start : start + group.width]
        if alone.all():
            continue
        try:
            retrace(model, example, structure, alone)
            only = operate(model, surgery(structure.trace, structure.grouping, alone))
            compare(model, only, example, structure.trace, structure.grouping, alone)
        except Mismatch as fault:
            return f"group {group.name} ({fault.fact})"
        except Exception:
            return f"group {group.name}"
    return "the groups together"
