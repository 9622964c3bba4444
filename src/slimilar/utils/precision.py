"""Where and in which precision numbers are computed.

Networks run where they are, in their own precision but at least in float32. Linear algebra is float64: on the same
device where that has it, else (Apple's GPUs) on the CPU, which gets covariances and kernels but no images.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map


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


class MinimumPrecision(TorchDispatchMode):
    """Compute in at least a precision, also where code asks for less, as by ``torch.arange(9).float()``.

    A model that was converted raises there, since most operators take numbers of one precision only.

    >>> with MinimumPrecision(torch.float64):
    ...     torch.matmul(torch.ones(2, 2).float(), torch.ones(2, 2, dtype=torch.float64)).dtype
    torch.float64
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here; without this, torch wraps every call in a guard against it."""
        return False

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.dtype = dtype

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        places = zip(args, func._schema.arguments, strict=False)
        wide = [x if _is_written(place) else tree_map(self._widened, x) for x, place in places]
        made = func(*wide, **tree_map(self._widened, kwargs or {}))
        return tree_map(self._widened, made) if not types else made

    def _widened(self, x: Any) -> Any:
        if isinstance(x, torch.dtype):
            return self.dtype if self._is_narrow(x) else x
        return x.to(self.dtype) if isinstance(x, Tensor) and self._is_narrow(x.dtype) else x

    def _is_narrow(self, dtype: torch.dtype) -> bool:
        return dtype.is_floating_point and dtype.itemsize < self.dtype.itemsize


def _is_written(place: Any) -> bool:
    return place.alias_info is not None and bool(place.alias_info.is_write)
