"""Checks of what users pass to analyze(), prune() and apply()."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from slimilar.errors import InvalidInput, Option
from slimilar.utils.modules import check_model, named_modules
from slimilar.utils.pytree import Example
from slimilar.utils.suggestions import choose


def check_inputs(model: nn.Module, example: Example) -> nn.Module:
    """Return the model if it and its example input can be traced."""
    model = check_model(model)
    if example is None:
        raise InvalidInput(
            "an example input must be given so that the model can be traced, got none: "
            "pass for instance torch.randn(1, 3, 224, 224)"
        )
    return model


def check_finite(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Refuse NaN, and infinity in parameters and in norms; other buffers hold it on purpose: masks, limits."""
    for name, tensor in tensors.items():
        if not tensor.is_floating_point() or tensor.is_meta:
            continue
        # A sum with NaN or infinity in it is not finite, and much cheaper than looking at each; it may overflow.
        if math.isfinite(tensor.detach().sum()):
            continue
        sound, what = torch.isfinite(tensor), "NaN or infinity"
        if _may_hold_infinity(model, name):
            sound, what = ~torch.isnan(tensor), "NaN"
        if not bool(sound.all()):
            raise InvalidInput(f"weights must be finite, got {what} in {name}; has training diverged?")


def _may_hold_infinity(model: nn.Module, name: str) -> bool:
    """Tell whether a name is that of a buffer of a module without running statistics."""
    path, _, own = name.rpartition(".")
    module = model.get_submodule(path)
    return own in module._buffers and getattr(module, "running_var", None) is None


def listed(exclude: str | nn.Module | Iterable[str | nn.Module]) -> tuple[str | nn.Module, ...]:
    """Return the modules to exclude, given as one or as several.

    >>> listed("conv1"), listed(["conv1", "conv2"])
    (('conv1',), ('conv1', 'conv2'))
    """
    return (exclude,) if isinstance(exclude, str | nn.Module) else tuple(exclude)


def excluded_modules(model: nn.Module, exclude: Sequence[str | nn.Module]) -> set[str]:
    """Return the names of all modules that are, or lie in, an excluded one."""
    names = {id(m): n for n, m in named_modules(model).items()} if exclude else {}
    found = set()
    for entry in exclude:
        if isinstance(entry, nn.Module) and id(entry) not in names:
            raise InvalidInput(
                Option("exclude"), f" must name modules of this model, got a foreign {type(entry).__name__}"
            )
        name = (
            names[id(entry)]
            if isinstance(entry, nn.Module)
            else choose(entry, list(names.values()), "exclude")
        )
        found |= {n for n in names.values() if n == name or n.startswith(f"{name}.") or not name}
    return found
