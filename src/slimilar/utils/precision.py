"""Where and in which precision numbers are computed.

Networks run where they are, in their own precision but at least in float32. Linear algebra is float64: on the same
device where that has it, else (Apple's GPUs) on the CPU, which gets covariances and kernels but no images.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


def working_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the precision to compute in: half precision is widened to float32.

    >>> working_dtype(torch.float16), working_dtype(torch.float64)
    (torch.float32, torch.float64)
    """
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def widened(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors detached, half-precision ones as float32."""
    return {name: t.detach().to(working_dtype(t.dtype)) for name, t in tensors.items()}


def has_float64(device: torch.device) -> bool:
    """Tell whether a device computes in float64."""
    try:
        torch.zeros((), dtype=torch.float64, device=device)
    except (TypeError, RuntimeError):
        return False
    return True


def exact_device(device: torch.device) -> torch.device:
    """Return the device for linear algebra: the given one if it has float64, else the CPU."""
    return device if device.type == "cpu" or has_float64(device) else torch.device("cpu")


def exact(tensor: Tensor) -> Tensor:
    """Return a tensor as float64, on the CPU if its device has none."""
    home = exact_device(tensor.device)
    return tensor.to(home).double()
