"""Weights whose entries are all different and tell where they stand.

Entry i of a weight has b = 88172645 i + 12345 (mod 2**27) written into a float32: the lowest 23 bits are its mantissa,
the next is its sign, and the last three are subtracted from its exponent. As the factor is odd, i -> b is a
permutation, so a number alone gives its place again, without any search.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_FACTOR, _SHIFT, _RANGE = 88_172_645, 12_345, 2**27
_INVERSE = pow(_FACTOR, -1, _RANGE)
_ONE = 127  # the exponent of 1.0 in a float32


def _scale(shape: torch.Size) -> int:
    """Return the power of two by which the numbers are divided, so that sums over the inputs stay moderate."""
    return round(math.log2(max(1, shape[1:].numel())) / 2)


def distinct(shape: torch.Size) -> Tensor:
    """Return numbers between -2 and 2 (at scale 0) that look random and are all different.

    >>> distinct(torch.Size([2])).tolist()
    [1.0014716386795044, 0.04726468771696091]
    """
    b = torch.arange(shape.numel(), dtype=torch.int32)
    b.mul_(_FACTOR).add_(_SHIFT).bitwise_and_(_RANGE - 1)  # what overflows are multiples of 2**32
    sign = b.bitwise_and(2**23).bitwise_left_shift_(8)
    exponent = b.bitwise_right_shift(24).neg_().add_(_ONE - _scale(shape)).bitwise_left_shift_(23)
    return b.bitwise_and_(2**23 - 1).bitwise_or_(sign).bitwise_or_(exponent).view(torch.float32).view(shape)


def places(numbers: Tensor, shape: torch.Size) -> Tensor:
    """Return where each number stands in `distinct(shape)`, flattened; minus one where no such weight has it.

    >>> places(distinct(torch.Size([3]))[[2, 0]], torch.Size([3])).tolist()
    [2, 0]
    """
    if numbers.dtype != torch.float32:
        return torch.full(numbers.shape, -1, dtype=torch.int32)
    b = numbers.contiguous().view(torch.int32)
    found = b.bitwise_right_shift(23).bitwise_and_(255).neg_().add_(_ONE - _scale(shape))
    other = (found < 0) | (found > 7)
    found.bitwise_left_shift_(24).bitwise_or_(b.bitwise_and(2**23 - 1))
    found.bitwise_or_(b.bitwise_right_shift(8).bitwise_and_(2**23))
    return found.sub_(_SHIFT).mul_(_INVERSE).bitwise_and_(_RANGE - 1).masked_fill_(other, -1)
