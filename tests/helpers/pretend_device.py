"""A pretend accelerator in pure Python: its tensors compute on the CPU underneath, and refuse to meet CPU tensors.

As CUDA does, it refuses to mix devices (numbers without axes and indices aside), to be seen by NumPy, and to draw
random numbers from a generator of another device. As Apple's MPS does, it can refuse float64 (`without_float64`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.backend_registration import (
    _DummyBackendModule,
    _DummyDeviceGuard,
    _DummyPrivateUse1Hook,
    _setup_privateuseone_for_python_backend,
)

NAME = "pretend"
DEVICE = torch.device("privateuseone:0")
_aten = torch.ops.aten


class State:
    """What the device can do at the moment."""

    available: ClassVar[bool] = False
    float64: ClassVar[bool] = True
    memory: ClassVar[int | None] = None  # bytes of the largest tensor that fits
    refused: ClassVar[int] = 0  # how often something did not fit


class PretendTensor(Tensor):
    """A tensor on the pretend device."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> PretendTensor:
        if inner.dtype in (torch.float64, torch.complex128) and not State.float64:
            raise TypeError(f"Cannot convert to {inner.dtype}: the {NAME} device does not support it")
        if State.memory is not None and inner.numel() * inner.element_size() > State.memory:
            State.refused += 1
            raise torch.OutOfMemoryError(
                f"{NAME} out of memory: {inner.numel() * inner.element_size()} bytes"
            )
        made = Tensor._make_wrapper_subclass(
            cls, inner.size(), inner.stride(), inner.storage_offset(), dtype=inner.dtype, device=DEVICE,
            requires_grad=inner.requires_grad,
        )  # fmt: skip
        made.inner = inner.detach()
        return made

    def __repr__(self, **_: Any) -> str:
        return f"PretendTensor({self.inner!r})"

    def tolist(self) -> Any:
        """Return the numbers, which a device hands over; torch does not ask a subclass for them."""
        return self.inner.tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


# Where CUDA takes tensors of the CPU too.
_CROSSING = {_aten.copy_.default, _aten._to_copy.default, _aten._copy_from.default, _aten.set_.source_Tensor}
_INDEXING = {
    _aten.index.Tensor,
    _aten.index_put_.default,
    _aten.index_put.default,
    _aten._index_put_impl_.default,
}


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    leaves, _ = tree_flatten((args, kwargs))
    _check(func, leaves, args)
    to_device = _device_of(func, leaves, kwargs)
    originals = {id(t.inner): t for t in leaves if isinstance(t, PretendTensor)}
    inner_args, inner_kwargs = tree_map(_inner, (args, kwargs))
    result = func(*inner_args, **inner_kwargs)

    def outer(x: Any) -> Any:
        if not isinstance(x, Tensor) or not to_device or x.is_meta:
            return x
        if id(x) in originals and not _is_view(func):
            return originals[id(x)]
        return PretendTensor(x)

    return tree_map(outer, result)


def _is_view(func: Any) -> bool:
    schema = func._schema
    return any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)


def _inner(x: Any) -> Any:
    if isinstance(x, PretendTensor):
        return x.inner
    if isinstance(x, torch.device) and x.type == DEVICE.type:
        return torch.device("cpu")
    return x


def _device_of(func: Any, leaves: list[Any], kwargs: dict[str, Any]) -> bool:
    """Tell whether what an operator returns lives on the pretend device."""
    if kwargs.get("device") is not None:
        return torch.device(kwargs["device"]).type == DEVICE.type
    if func in (_aten.copy_.default, _aten._copy_from.default):
        target = leaves[0] if func is _aten.copy_.default else leaves[1]
        return isinstance(target, PretendTensor)
    return True


def _check(func: Any, leaves: list[Any], args: Any) -> None:
    for x in leaves:
        if isinstance(x, torch.Generator):
            raise RuntimeError(f"Expected a '{NAME}' device type for generator but found '{x.device.type}'")
    if func in _CROSSING:
        return
    mine = [x for x in leaves if isinstance(x, PretendTensor)]
    others = [x for x in leaves if isinstance(x, Tensor) and not isinstance(x, PretendTensor) and x.dim() > 0]
    if func in _INDEXING and isinstance(args[0], PretendTensor):
        others = [x for x in others if x.dtype not in (torch.int64, torch.int32, torch.bool, torch.uint8)]
    if mine and others:
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, "
            f"{NAME}:0 and {others[0].device}! ({func.name()})"
        )


class _Module(_DummyBackendModule):
    def is_available(self) -> bool:
        return State.available

    def device_count(self) -> int:
        return int(State.available)

    def synchronize(self, device: Any = None) -> None:
        pass

    def get_device_name(self, device: Any = None) -> str:
        return "Pretend 3000"

    def get_rng_state(self, device: Any = None) -> Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: Tensor, device: Any = None) -> None:
        pass

    def manual_seed(self, seed: int) -> None:
        pass

    def set_device(self, device: Any) -> None:
        pass

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16]


class _Hook(_DummyPrivateUse1Hook):
    def is_available(self) -> bool:
        return State.available


def _registered() -> Iterator[bool]:
    _setup_privateuseone_for_python_backend(NAME, _Module(), _Hook(), _DummyDeviceGuard())
    library = torch.library.Library("_", "IMPL")
    library.fallback(_fallback, "PrivateUse1")
    while True:
        yield bool(library)


def _fallback(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Run a factory function, which has no tensor to tell where it runs."""
    return _run(func, args, kwargs)


_keep: list[Any] = []


def register() -> torch.device:
    """Register the device, once for this process; return it."""
    if not _keep:
        found = _registered()
        next(found)
        _keep.append(found)
    return DEVICE


@contextmanager
def pretend_device(float64: bool = True) -> Iterator[torch.device]:
    """Make the device available for a while."""
    register()
    before = State.available, State.float64
    State.available, State.float64 = True, float64
    try:
        yield DEVICE
    finally:
        State.available, State.float64 = before
