r"""How much of an error at each output of a reader the network's output hears.

To second order, the divergence that an error $\delta$ in front of a layer causes is $\tfrac12 E[(g^\top \delta)^2]$;
g is the gradient of the log-probability of a label drawn from the network's own answer, softened (Fisher
information). Taken for one output of a reader at a time, that is a weight for the error there. One pass backward
over a few pictures.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from slimilar import replay
from slimilar.replay import Tape

TEMPERATURE = (
    4.0  # a trained network is sure of its training pictures: softened answers still tell them apart
)
_NUMBERS = 100_000_000  # values that may be held for the way back


def hearing(
    tape: Tape, ops: Iterable[int], tensors: replay.Tensors, batch: Tensor, seed: int = 0
) -> dict[int, Tensor]:
    """Return for every operator, by channel of its output, the squared gradient that arrives there."""
    batch = batch[: _affordable(tape, tensors, batch)]
    tape = replay.resized(tape, len(batch))
    values, watched, wanted = replay.start(tape, [batch]), {}, set(ops)
    with torch.enable_grad():
        for k, play in enumerate(tape.plays):
            replay.play_one(tape, k, values, tensors)
            if k in wanted:
                watched[k] = values[play.outputs[0]].requires_grad_()
        told = _told([values[v] for v in tape.outputs], torch.Generator().manual_seed(seed))
        if not told.requires_grad:
            return {}
        grads = torch.autograd.grad(told, list(watched.values()), allow_unused=True)
    return {k: _by_channel(g) for k, g in zip(watched, grads, strict=True) if g is not None}


def _affordable(tape: Tape, tensors: replay.Tensors, batch: Tensor) -> int:
    """Return how many pictures fit: what one of them leaves behind on its way is counted."""
    one = replay.resized(tape, 1)
    values, size = replay.start(one, [batch[:1]]), 0
    with torch.no_grad():
        for k, play in enumerate(one.plays):
            replay.play_one(one, k, values, tensors)
            size += sum(values[v].numel() for v in play.outputs)
            for v in {*play.inputs, *play.outputs}:
                if one.last_use[v] <= k:
                    values.pop(v, None)
    return max(1, min(len(batch), _NUMBERS // max(1, size)))


def _told(outputs: Sequence[Tensor], generator: torch.Generator) -> Tensor:
    """Return the log-probability of labels drawn from the answers; of other outputs, a sum with random weights."""
    total = torch.zeros(())
    for out in outputs:
        if not out.is_floating_point():
            continue
        if out.ndim == 2 and out.shape[1] > 1:
            soft = out / TEMPERATURE
            drawn = torch.multinomial(soft.detach().softmax(1), 1, generator=generator)
            total = total + soft.log_softmax(1).gather(1, drawn).sum()
        else:
            total = total + (out * torch.randn(out.shape, generator=generator)).sum()
    return total


def _by_channel(gradient: Tensor) -> Tensor:
    axis = 1 if gradient.ndim > 2 else gradient.ndim - 1
    return gradient.square().sum([a for a in range(gradient.ndim) if a != axis]).double()
