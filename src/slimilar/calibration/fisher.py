r"""Fisher information: how much an error at each output of a consumer changes the network's output.

To second order, the divergence that an error $\delta$ in front of a layer causes is $\tfrac12 E[(g^\top \delta)^2]$;
g is the gradient of the log-probability of a label drawn from the network's own answer, softened (Fisher
information). Taken for one output of a consumer at a time, that is a weight for the error there. One pass backward
over a few images.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from slimilar.calibration import replay
from slimilar.calibration.program import Program
from slimilar.utils.precision import exact

_TEMPERATURES = (1.0, 2.0, 4.0, 8.0)
_SPREAD = 0.4  # of the images that must have a say
_NUMBERS = 100_000_000  # values that may be held for the way back


def temperature(scores: Tensor) -> float:
    r"""Return how far to soften answers so that the images have a say, and not just the few the network doubts.

    A network that knows its training images by heart is sure of nearly all of them. With the doubt
    $u = 1 - \sum_c p_c^2$ of each image at a temperature, $(\sum u)^2 / \sum u^2$ images decide; it is the smallest
    temperature at which that is a fair share of them.

    >>> sure, doubtful = torch.tensor([[9.0, 0.0]]), torch.tensor([[0.1, 0.0]])
    >>> temperature(doubtful), temperature(torch.cat([sure] * 9 + [doubtful]))
    (1.0, 4.0)
    """
    for found in _TEMPERATURES:
        doubt = 1 - (exact(scores) / found).softmax(1).square().sum(1)
        total, each = doubt.sum(), len(doubt)
        if total > 1e-9 * each and total.square() >= _SPREAD * each * doubt.square().sum():
            return found
    return _TEMPERATURES[-1]


def are_class_scores(output: Tensor) -> bool:
    """Tell whether an output holds class scores."""
    return output.is_floating_point() and output.ndim == 2 and output.shape[1] > 1


def fisher_weights(
    program: Program, ops: Iterable[int], tensors: replay.Tensors, batch: Tensor, seed: int = 0
) -> dict[int, Tensor]:
    """Return for every operator, by channel of its output, the squared gradient that arrives there."""
    outputs = {k: program.instructions[k].outputs[0] for k in ops}
    found = _gradients(program, set(outputs.values()), tensors, batch, torch.Generator().manual_seed(seed))
    return {k: _by_channel(found[v], _axis(found[v])) for k, v in outputs.items() if v in found}


def fisher_of_values(
    program: Program,
    axes: Mapping[int, int],
    tensors: replay.Tensors,
    batches: Iterable[Tensor],
    seed: int = 0,
) -> dict[int, Tensor]:
    """Return for every value, by index along its axis, the squared gradient that arrives there, of all batches."""
    generator, total = torch.Generator().manual_seed(seed), dict[int, Tensor]()
    for batch in batches:
        for v, gradient in _gradients(program, set(axes), tensors, batch, generator).items():
            found = _by_channel(gradient, axes[v])
            total[v] = total[v] + found if v in total else found
    return total


def _gradients(
    program: Program, wanted: set[int], tensors: replay.Tensors, batch: Tensor, generator: torch.Generator
) -> dict[int, Tensor]:
    """Return the gradient of what the outputs say that arrives at every value wanted; none where none does."""
    batch = batch[: _affordable(program, batch)]
    program = replay.resized(program, len(batch))
    values, watched = replay.start(program, [batch]), {}
    with torch.enable_grad():
        for k, instruction in enumerate(program.instructions):
            replay.execute(program, k, values, tensors)
            for v in wanted.intersection(instruction.outputs):
                watched[v] = values[v].requires_grad_()
        told = _told([values[v] for v in program.outputs], generator)
        if not told.requires_grad:
            return {}
        grads = torch.autograd.grad(told, list(watched.values()), allow_unused=True)
    return {v: g for v, g in zip(watched, grads, strict=True) if g is not None}


def _affordable(program: Program, batch: Tensor) -> int:
    """Return how many images fit: what each leaves behind on its way is counted."""
    least = min(2, len(batch))  # some models run other operators on a single image
    return max(least, min(len(batch), _NUMBERS // max(1, program.numbers_per_image)))


def _told(outputs: Sequence[Tensor], generator: torch.Generator) -> Tensor:
    """Return the log-probability of labels drawn from the answers; of other outputs, a sum with random weights."""
    total = torch.zeros((), device=outputs[0].device)
    for out in outputs:
        if not out.is_floating_point():
            continue
        if are_class_scores(out):
            soft = out / temperature(out.detach())
            drawn = torch.multinomial(soft.detach().softmax(1).cpu(), 1, generator=generator).to(out.device)
            total = total + soft.log_softmax(1).gather(1, drawn).sum()
        else:
            scale = out.detach().std().clamp_min(1e-12)  # each output in its own units
            total = total + (out / scale * torch.randn(out.shape, generator=generator).to(out)).sum()
    return total


def _axis(output: Tensor) -> int:
    """Return the axis of the channels in what a convolution or a linear layer writes."""
    return 1 if output.ndim > 2 else output.ndim - 1


def _by_channel(gradient: Tensor, axis: int) -> Tensor:
    return exact(gradient.square().sum([a for a in range(gradient.ndim) if a != axis]))
