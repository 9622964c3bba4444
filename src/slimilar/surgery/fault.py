"""Verify a rewrite, and name the group at fault where it does not hold."""

from __future__ import annotations

from warnings import warn

import numpy as np
from torch import nn

from slimilar.errors import Option, SlimilarWarning, VerificationError
from slimilar.graph.structure import Structure
from slimilar.surgery.other_inputs import random_like
from slimilar.surgery.retrace import Mismatch, retrace
from slimilar.surgery.rewrite import Kept, operate, surgery
from slimilar.surgery.verify import plain_outputs, verify
from slimilar.surgery.zero_weights import random_for_zeros
from slimilar.utils.modules import copy_with, device_of, named_tensors
from slimilar.utils.pytree import Example


def verify_rewrite(
    model: nn.Module, small: nn.Module, example: Example, structure: Structure, kept: Kept
) -> float:
    """Compare a smaller model with the masked original; on a mismatch name the group at fault.

    Where weights are zero throughout, both are compared with random ones in their place, too.
    """
    try:
        error = verify(model, small, example, structure.trace, structure.grouping, kept)
        return verify_behind_zeros(model, small, example, structure, kept, error)
    except Exception as error:
        detail = str(error) if isinstance(error, VerificationError) else f"the smaller model raised: {error}"
        leave_out = Option("exclude", "NAME", "exclude=[...]")
        raise VerificationError(
            f"{detail}; at fault: {_at_fault(model, example, structure, kept)}. Exclude it (",
            leave_out,
            ") and report the model, please",
        ) from error


def verify_behind_zeros(
    model: nn.Module,
    small: nn.Module | None,
    example: Example,
    structure: Structure,
    kept: Kept,
    error: float,
) -> float:
    """Return an error, or the one behind weights that are zero throughout, whichever is larger.

    There both models are compared with random numbers in the place of zeros; without a smaller model, a rewrite of the
    original. Warn where nothing but zeros could be compared even so: that is no verification.
    """
    random = random_for_zeros(model)
    if random:
        model = copy_with(model, random)
        made = operate(model, surgery(structure.trace, structure.grouping, kept))
        tensors = named_tensors(made)
        if small is not None:
            made = copy_with(small, {name: tensors[name] for name in random if name in tensors})
        error = max(error, verify(model, made, example, structure.trace, structure.grouping, kept))
    if error == 0 and not _answers(model, example):
        warn(
            "the smaller model could not be verified: on random input all outputs of the original are zeros, as are "
            "its own. Check the example input, and that the model is trained.",
            SlimilarWarning,
            stacklevel=2,
        )
    return error


def _answers(model: nn.Module, example: Example) -> bool:
    """Tell whether any output of a model on random input is not zero; of one without numbers nobody can."""
    if device_of(model).type == "meta":
        return True
    inputs = random_like(example, None, device_of(model))
    return any(bool(t.any()) for t in plain_outputs(model, inputs))


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
