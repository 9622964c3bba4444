"""Channel selection: a batch norm that reads only a part of the stream in front of it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class _Selective(nn.modules.batchnorm._BatchNorm):
    """Select channels first, then normalise only what was selected."""

    index: Tensor

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.index_select(1, self.index))


class SelectiveBatchNorm1d(_Selective, nn.BatchNorm1d):
    """`BatchNorm1d` of the channels in `index`."""


class SelectiveBatchNorm2d(_Selective, nn.BatchNorm2d):
    """`BatchNorm2d` of the channels in `index`.

    >>> norm = select_from(nn.BatchNorm2d(2), torch.tensor([3, 0]))
    >>> norm(torch.zeros(1, 4, 5, 5)).shape
    torch.Size([1, 2, 5, 5])
    """


class SelectiveBatchNorm3d(_Selective, nn.BatchNorm3d):
    """`BatchNorm3d` of the channels in `index`."""


_SELECTIVE: dict[type[nn.Module], type[nn.Module]] = {
    nn.BatchNorm1d: SelectiveBatchNorm1d,
    nn.BatchNorm2d: SelectiveBatchNorm2d,
    nn.BatchNorm3d: SelectiveBatchNorm3d,
}


def can_select(module: nn.Module) -> bool:
    """Tell whether `select_from` knows this kind of module; a selective one may be narrowed again."""
    return type(module) in _SELECTIVE


def select_from(norm: nn.Module, index: Tensor) -> Any:
    """Turn a batch norm, in place, into one that first selects the channels `index` of its input.

    The object stays the same, so its hooks, state and places in the network do too.
    """
    norm.__class__ = _SELECTIVE[type(norm)]
    norm.register_buffer("index", index.to(torch.int64))
    return norm
