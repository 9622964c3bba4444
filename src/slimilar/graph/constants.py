"""Constants that the user's code makes on the CPU while a model runs on the meta device."""

from __future__ import annotations

import torch
from torch import Tensor


class NeedsValues(Exception):
    """Shapes alone do not tell where the channels go."""


class Constants:
    """Copies of constants without numbers, and the numbers they stand for."""

    def __init__(self) -> None:
        # Id -> the tensor, kept alive, and its counterpart.
        self._pairs: dict[int, tuple[Tensor, Tensor]] = {}

    def on_meta(self, tensor: Tensor) -> Tensor:
        """Return a tensor's counterpart on the meta device; the same one each time."""
        if tensor.device.type == "meta":
            return tensor
        if id(tensor) not in self._pairs:
            copy = torch.empty_like(tensor, device="meta")
            self._pairs[id(tensor)] = (tensor, copy)
            self._pairs[id(copy)] = (copy, tensor)
        return self._pairs[id(tensor)][1]

    def original(self, tensor: Tensor) -> Tensor:
        """Return the tensor with numbers that one on the meta device stands for, or the tensor itself."""
        return self._pairs[id(tensor)][1] if tensor.is_meta and id(tensor) in self._pairs else tensor

    def known(self, tensor: Tensor) -> bool:
        """Tell whether `numbers` has an answer."""
        return tensor.device.type != "meta" or id(tensor) in self._pairs

    def numbers(self, tensor: Tensor) -> Tensor:
        """Return the numbers of a tensor, which must not depend on the model's input."""
        if not self.known(tensor):
            raise NeedsValues("an index")
        if tensor.device.type != "meta":
            return tensor.detach().cpu()
        return self._pairs[id(tensor)][1]
