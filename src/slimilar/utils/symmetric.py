"""Symmetric matrices by blocks: half of the work."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

_BLOCK = 128  # rows: few enough to skip half of a matrix, enough for fast products


def symmetric(size: int, block: Callable[[slice, slice], Tensor]) -> Tensor:
    """Return a symmetric matrix; `block` computes some rows of it, in the columns from their diagonal on.

    >>> x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> symmetric(2, lambda rows, columns: x[rows] @ x[columns].T).tolist()
    [[5.0, 11.0], [11.0, 25.0]]
    """
    parts = {start: block(*_places(start)) for start in range(0, size, _BLOCK)}
    if len(parts) == 1:
        return parts[0]
    found = next(iter(parts.values()), torch.empty(0)).new_empty(size, size)
    for start, part in parts.items():
        rows, columns = _places(start)
        found[rows, columns] = part
        found[columns, rows] = part.T
    return found


def quadratic_forms(rows: Tensor, matrix: Tensor) -> Tensor:
    r"""Return $x^\top A x$ for every row x and a symmetric matrix A.

    >>> quadratic_forms(torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 3.0], [3.0, 5.0]])).tolist()
    [33.0]
    """
    total = rows.new_zeros(len(rows))
    for start in range(0, len(matrix), _BLOCK):
        here, onwards = _places(start)
        block = matrix[here, onwards].clone()
        block[:, _BLOCK:] *= 2  # for the part below the diagonal
        total += (rows[:, here] @ block).mul_(rows[:, onwards]).sum(1)
    return total


def _places(start: int) -> tuple[slice, slice]:
    return slice(start, start + _BLOCK), slice(start, None)
