r"""Structured sparsity learning (Wen et al., 2016): group lasso over filters and input channels while training.

The loss gains
$$\lambda \sum_u (\lVert F_u \rVert_2 + \lVert K_u \rVert_2),$$
for every unit u the norm of the filters that write it and that of the kernels that read it. After each step of SGD
comes the proximal step of this term with the step's learning rate $\eta$,
$$w \leftarrow \left(1 - \frac{\eta\lambda}{\lVert w \rVert_2}\right)_+ w,$$
first for the filters, then for the kernels. It is exact for either, because neither have weights in common among
themselves; one after the other, they are the step of the sum but for terms in $(\eta\lambda)^2$. So groups become
exactly zero; those leave.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from slimilar.criteria.base import Facts, Floats, PerGroup, Weights, free_units, mark_trained, staggered
from slimilar.criteria.filters import filter_members, is_scale, kernel_members
from slimilar.errors import InvalidInput
from slimilar.graph.groups import ChannelGroup, Member
from slimilar.similarity.removal_order import NO_REPRESENTATIVE, RemovalOrder
from slimilar.utils.modules import named_tensors

if TYPE_CHECKING:
    from slimilar.train import Hooks

_ZERO = 1e-9  # heights below this are those of groups that are exactly zero


@dataclass(frozen=True)
class StructuredSparsity(PerGroup):
    """Remove units whose filters or kernels are zero, then small ones.

    A height is the unit's size as a share of the largest in its layer: of its filters or of its kernels, whichever is
    less. Those at zero leave at any threshold above 1e-9. `strength` is lambda.
    """

    strength: float = 5e-4
    trained: bool = False
    name: str = "structured-sparsity"
    facts: ClassVar[Facts] = Facts(
        "Training with a group lasso over filters and input channels, then what became zero is removed.",
        needs="training",
        tag="SSL",
        automatic=True,
        pretrained=False,
    )

    def __post_init__(self) -> None:
        if not 0 <= self.strength < float("inf"):
            raise InvalidInput(f"strength must be a number from 0 on, got {self.strength}; 5e-4 is usual")

    def order(self, turn: int, group: ChannelGroup, weights: Weights) -> RemovalOrder | str:
        """Return the order of growing sizes."""
        parts: list[Floats] = []
        families: list[Callable[[ChannelGroup], list[Member]]] = [sized_filters, kernel_members]
        for members in families:
            if found := members(group):
                size = sizes(group, found, weights.tensors).cpu().double().numpy()
                parts.append(size / max(float(size.max()), np.finfo(np.float64).tiny))
        if not parts:
            return "neither filters nor kernels: there is no size to go by"
        units = free_units(group)
        share = np.min(parts, 0)[units]
        order = np.argsort(share, kind="stable")
        heights = np.maximum(share[order], _ZERO * staggered(len(order), turn))
        return RemovalOrder(
            units[order], np.maximum.accumulate(heights), np.full(len(order), NO_REPRESENTATIVE)
        )

    def hooks(self, groups: Sequence[ChannelGroup], counts: Sequence[int] | None) -> Hooks:
        """Return the proximal step."""
        from slimilar.train import Hooks

        def after_step(model: nn.Module, lr: float) -> None:
            held = named_tensors(model)
            for members in (sized_filters, kernel_members):
                for group in groups:
                    shrink(group, members(group), held, lr * self.strength)

        return Hooks(
            after_step=after_step,
            on_epoch_end=lambda model, epoch: mark_trained(model, self.name),
            name=f"{self.name}, strength {self.strength:g}",
        )


def sized_filters(group: ChannelGroup) -> list[Member]:
    """Return the filters that write a group, without the scales of a batch norm that selects from a stream."""
    return [m for m in filter_members(group) if not is_scale(m, group)]


@torch.no_grad()
def shrink(group: ChannelGroup, members: Sequence[Member], held: Mapping[str, Tensor], amount: float) -> None:
    """Take the proximal step of amount * norm for what the members hold of each unit that may leave, in place."""
    if not members:
        return
    size = sizes(group, members, held)
    factor = (1 - amount / size.clamp_min(torch.finfo(size.dtype).tiny)).clamp_min(0)
    factor[list(group.fixed)] = 1
    factor = torch.cat([factor, factor.new_ones(1)])  # what belongs to no unit of the group stays as it is
    for member in members:
        tensor = held[member.tensor]
        index = torch.from_numpy(member.units).to(tensor.device)
        tensor.mul_(factor[index].to(tensor.dtype).reshape(_along(member, tensor)))


def sizes(group: ChannelGroup, members: Sequence[Member], held: Mapping[str, Tensor]) -> Tensor:
    """Return the norm of what all members together hold of each unit."""
    first = held[members[0].tensor]
    total = torch.zeros(group.width, dtype=first.dtype, device=first.device)
    for member in members:
        tensor = held[member.tensor].detach()
        squares = (
            tensor.movedim(member.axis, 0).flatten(1).square().sum(1) if tensor.ndim > 1 else tensor.square()
        )
        inside = torch.from_numpy(np.flatnonzero(member.units >= 0)).to(tensor.device)
        units = torch.from_numpy(member.units).to(tensor.device)[inside]
        total.index_add_(0, units, squares[inside].to(total.dtype))
    return total.sqrt()


def _along(member: Member, tensor: Tensor) -> list[int]:
    return [-1 if a == member.axis else 1 for a in range(tensor.ndim)]
