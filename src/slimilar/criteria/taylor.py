r"""First-order Taylor expansion of the loss (Molchanov et al., 2017 and 2019).

A channel that is set to zero where it is read changes the loss by about
$$-\sum_r \langle w_r, \partial L / \partial w_r \rangle,$$
over its kernels $w_r$ in all its consumers: the same as activation times gradient, summed up. The square of that,
averaged over the batches, is the channel's importance; it is comparable between layers, so the least of the whole
network leave.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from slimilar.calibration import replay
from slimilar.criteria.base import CalibrationView, Facts, Floats, Weights, by_rank
from slimilar.criteria.filters import kernel_members, totals
from slimilar.errors import InvalidInput
from slimilar.graph.groups import ChannelGroup
from slimilar.similarity.removal_order import RemovalOrder


@dataclass(frozen=True)
class Taylor:
    """Remove what the loss would miss least; a height is the channel's rank among all, from 0 to 1."""

    name: str = "taylor"
    facts: ClassVar[Facts] = Facts(
        "The channels whose removal changes the loss least, to first order, are removed over all layers.",
        needs="labels",
        automatic=True,
    )

    def orders(self, groups: Sequence[ChannelGroup], weights: Weights) -> list[RemovalOrder | str]:
        """Return the removal order of every group."""
        assert weights.calibration is not None  # the facts declare that labels are needed
        changes = loss_changes(groups, weights, weights.calibration)
        scores: list[Floats | str] = [
            np.square(c).mean(0) if kernel_members(g) else "no layer consumes these channels"
            for g, c in zip(groups, changes, strict=True)
        ]
        return by_rank(scores, groups)


def loss_changes(
    groups: Sequence[ChannelGroup], weights: Weights, calibration: CalibrationView
) -> list[Floats]:
    """Return for every group (batches, width): by how much the loss of a batch would fall if a unit were zero."""
    names = sorted({m.tensor for g in groups for m in kernel_members(g)})
    plain = {name: t.detach() for name, t in weights.tensors.items()}
    found: list[list[Floats]] = [[] for _ in groups]
    for i, batch in enumerate(calibration.batches):
        products = _products(calibration, i, batch, plain, names)
        for g, group in enumerate(groups):
            total = np.zeros(group.width)
            for m in kernel_members(group):
                total += totals(m, group.width, products[m.tensor]).numpy()
            found[g].append(total)
        if calibration.progress is not None:
            calibration.progress("computing gradients", i + 1, len(calibration.batches))
    return [np.array(f) for f in found]


def _products(
    calibration: CalibrationView, i: int, batch: Tensor, plain: dict[str, Tensor], names: Sequence[str]
) -> dict[str, Tensor]:
    """Return weight times gradient of the loss of one batch, for the named weights."""
    assert calibration.labels is not None
    with torch.enable_grad():
        leaves = {name: plain[name].clone().requires_grad_() for name in names}
        values = replay.start(calibration.program, [batch])
        replay.run(calibration.program, values, {**plain, **leaves})
        scores = values[calibration.program.outputs[0]]
        labels = calibration.labels[i].to(scores.device)
        _check_scores(scores, labels)
        gradients = torch.autograd.grad(
            F.cross_entropy(scores, labels), list(leaves.values()), allow_unused=True
        )
    return {
        name: (plain[name] * (0.0 if g is None else g)).cpu().double()
        for name, g in zip(names, gradients, strict=True)
    }


def _check_scores(scores: Tensor, labels: Tensor) -> None:
    if scores.ndim != 2:
        raise InvalidInput(
            f'criterion "taylor" needs a model that returns scores (images, classes), got {tuple(scores.shape)}'
        )
    if not 0 <= int(labels.min()) <= int(labels.max()) < scores.shape[1]:
        raise InvalidInput(
            f"labels must be 0 to {scores.shape[1] - 1} for {scores.shape[1]} scores, "
            f"got {int(labels.min())} to {int(labels.max())}"
        )
