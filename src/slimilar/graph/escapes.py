"""Numbers that leave torch, where no operator can be followed: NumPy arrays, Python lists, odd outputs."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

from slimilar.errors import InvalidInput
from slimilar.utils.pytree import foreign_in, tensors_in

_LEAVING = (Tensor.numpy, Tensor.tolist, Tensor.__array__, Tensor.__dlpack__)


class Escapes(TorchFunctionMode):
    """Collect the tensors whose numbers leave torch, and by which method: what is done with them is not seen."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[Tensor, str]] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in _LEAVING:
            self.found.append((args[0], f"Tensor.{func.__name__}"))
        return func(*args, **(kwargs or {}))


def check_outputs(result: Any) -> None:
    """Refuse outputs in which tensors are not all seen: channels that become an output must stay."""
    foreign = next(foreign_in(result), None)
    if foreign is None and any(True for _ in tensors_in(result)):
        return
    got = f"a {type(result).__name__} without any"
    if foreign is not None:
        inside = "" if foreign is result else f" in a {type(result).__name__}"
        got = f"{type(foreign).__module__}.{type(foreign).__qualname__}{inside}"
    raise InvalidInput(
        "the model must return tensors, alone or in lists, tuples, dicts or objects with attributes, got "
        f"{got}: its outputs could be neither kept nor compared; "
        "pass a module that returns them as tensors"
    )
