"""Twice as many images for nothing: horizontal flips, where left and right are the same to a network."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from slimilar.calibration import replay
from slimilar.calibration.fisher import are_class_scores
from slimilar.calibration.program import Program

_ALIKE = 0.9  # of the images whose horizontal flip is taken for the same thing


def with_flips(batches: Sequence[Tensor], program: Program, tensors: replay.Tensors) -> list[Tensor]:
    """Return the batches followed by their horizontal flips, or alone where the network tells the two apart.

    Digits and letters are not what their horizontal flips are, and a network that has learned them says so.
    """
    wanted = batches[0].ndim == 4 and not _mirrored(batches)
    if not wanted or not _alike(batches[0], program, tensors):
        return list(batches)
    return [*batches, *(b.flip(-1) for b in batches)]


def _mirrored(batches: Sequence[Tensor]) -> bool:
    """Tell whether horizontal flips are there already: that of the first image, if it has another one than itself."""
    first, image = batches[0][0], batches[0][0].flip(-1)
    return not torch.equal(first, image) and any(bool((b == image).flatten(1).all(1).any()) for b in batches)


def _alike(batch: Tensor, program: Program, tensors: replay.Tensors) -> bool:
    """Tell whether a network that gives class scores answers the same on horizontal flips."""
    if any(len(program.trace.values[v].shape) != 2 for v in program.outputs):
        return False  # spares two forward passes
    answers = []
    with torch.no_grad():
        for images in (batch, batch.flip(-1)):
            values = replay.start(program, [images])
            replay.run(program, values, tensors)
            answers.append([values[v] for v in program.outputs])
    straight, mirrored = answers
    return all(map(are_class_scores, straight)) and all(
        float((a.argmax(1) == b.argmax(1)).float().mean()) >= _ALIKE
        for a, b in zip(straight, mirrored, strict=True)
    )
