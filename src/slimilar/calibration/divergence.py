"""How far a network's outputs are from the original's, whatever they are: class scores, dense maps, numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from slimilar.calibration.fisher import are_class_scores, temperature
from slimilar.utils.precision import exact

_WORST = 1e6  # in place of what is not finite
_TINY = 1e-12


def divergence(given: Sequence[Tensor], wanted: Sequence[Tensor]) -> float:
    r"""Return how much of what the original's outputs say is lost, summed over outputs; 0 is nothing.

    Each output counts in its own units. Class scores: the KL divergence of softened answers p from the original's q,
    relative to what q says at all, $E[KL(q \Vert p)] / E[KL(q \Vert \bar q)]$ with $\bar q$ the mean answer. Others:
    the squared error relative to the variance around the mean of each channel.

    >>> maps = torch.tensor([[[0.0, 2.0]]])
    >>> divergence([maps + 1], [maps]), divergence([maps, maps], [maps, maps])
    (1.0, 0.0)
    """
    return float(divergence_by_image(given, wanted).mean())


def divergence_by_image(given: Sequence[Tensor], wanted: Sequence[Tensor]) -> Tensor:
    """Return what every image adds to the divergence, which is the mean of these.

    An output that has another number of entries than there are images counts for all of them alike.
    """
    images = len(wanted[0]) if wanted and wanted[0].ndim else 1
    total = torch.zeros(images, dtype=torch.float64)
    for a, b in zip(given, wanted, strict=True):
        if not b.is_floating_point() or not b.numel():
            continue
        if are_class_scores(b):
            found = _of_scores(a, b)
        else:
            entries = len(b) if b.ndim else 1
            errors = (a - b).square().reshape(entries, -1).sum(1)
            found = entries * errors / _spread(b).clamp_min(_TINY)
        found = found.double().cpu()
        total += found if len(found) == images else found.mean()
    return total.nan_to_num(_WORST, _WORST, _WORST)


def surely_less(gaps: Tensor, than: Tensor, errors: float = 1.5) -> bool:
    """Tell whether divergences of the same images are less by so many standard errors of the mean difference.

    >>> few = torch.tensor([0.1, 0.2, 0.1])
    >>> surely_less(few, 3 * few), surely_less(few, few + torch.tensor([0.2, -0.1, 0.0])), surely_less(few, few)
    (True, False, False)
    """
    if len(gaps) < 2:
        return False
    excess = gaps - than
    return bool(excess.mean() < -errors * excess.std() / len(excess) ** 0.5)


def _of_scores(given: Tensor, wanted: Tensor) -> Tensor:
    heat = temperature(wanted)
    p, q = ((exact(scores) / heat).log_softmax(1) for scores in (given, wanted))
    mean = q.logsumexp(0, keepdim=True) - float(np.log(len(q)))
    said = float(_kl(mean.expand_as(q), q).mean()) if len(q) > 1 else 1.0
    return _kl(p, q) / max(said, _TINY)


def _kl(p: Tensor, q: Tensor) -> Tensor:
    """Return the KL divergence of the answer to every image."""
    return functional.kl_div(p, q, log_target=True, reduction="none").flatten(1).sum(1)


def _spread(output: Tensor) -> Tensor:
    """Return the summed squares around the mean of each channel, or of all numbers where there is one of each."""
    axes = [a for a in range(output.ndim) if a != 1] if output.ndim > 2 else list(range(output.ndim))
    centred = output - output.mean(axes, keepdim=True)
    found = centred.square().sum()
    return found if bool(found > 0) else torch.as_tensor(output.square().sum())
