"""An independent check of a pruned network, from the weights of the two networks alone.

No two entries of a weight are the same number, so each number of the smaller network is found in the larger one, and
it is known which entries are gone. With exactly these entries set to zero, the larger network must give the same
output. No tool's own idea of what it removed is used.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from _zoo.numbers import distinct, places
from slimilar.utils.pytree import arguments, map_tensors, tensors_in

_LAYERS = (nn.modules.conv._ConvNd, nn.Linear)


def randomise(model: nn.Module) -> nn.Module:
    """Make every entry of a weight a number of its own, and every batch norm look trained."""
    generator = torch.Generator().manual_seed(0)
    for module in model.modules():
        if isinstance(module, _LAYERS):
            module.weight.data = distinct(module.weight.shape)
        if getattr(module, "running_var", None) is not None:
            _randomise_norm(module, generator)
    return model.eval()


def _randomise_norm(module: Any, generator: torch.Generator) -> None:
    size = module.running_var.shape
    module.running_var.copy_(torch.rand(size, generator=generator) + 0.5)
    module.running_mean.copy_(torch.randn(size, generator=generator) * 0.1)
    if getattr(module, "weight", None) is not None:
        module.weight.data.copy_(torch.rand(size, generator=generator) + 0.5)
        module.bias.data.copy_(torch.randn(size, generator=generator) * 0.3)


def masked(original: nn.Module, small: nn.Module) -> nn.Module:
    """Return the original with every entry set to zero that the smaller network no longer has."""
    result = copy.deepcopy(original)
    lesser = dict(small.named_modules())
    for name, module in result.named_modules():
        other = lesser.get(name)
        if (
            isinstance(module, _LAYERS)
            and isinstance(other, _LAYERS)
            and module.weight.shape != other.weight.shape
        ):
            module.weight.data = module.weight.data * _kept(module.weight.data, other.weight.data)
    return result


def _kept(weight: Tensor, small: Tensor) -> Tensor:
    """Return a mask of the entries that the smaller weight still has, by the first number of each kernel."""
    lesser = small.flatten(2).select(-1, 0).flatten() if small.ndim > 2 else small.flatten()
    size, found = weight[0, 0].numel(), places(lesser, weight.shape)
    known = bool(((found >= 0) & (found < weight.numel())).all())
    if known and torch.equal(weight.flatten()[found], lesser) and not bool((found % size).any()):
        kept = found // size
    else:  # other numbers than ours: the tool has rewritten the weight
        numbers = weight.flatten(2).select(-1, 0).flatten() if weight.ndim > 2 else weight.flatten()
        kept = sought(numbers, lesser)
    mask = weight.new_zeros(weight.shape[:2].numel())
    mask[kept] = 1
    return mask.view(*weight.shape[:2], *(1,) * (weight.ndim - 2))


def sought(numbers: Tensor, lesser: Tensor) -> Tensor:
    """Return the places in `numbers` of those of `lesser` that are there, whatever the numbers are."""
    order = numbers.argsort()
    ordered = numbers[order]
    place = torch.searchsorted(ordered, lesser.contiguous()).clamp_max(len(ordered) - 1)
    return order[place[ordered[place] == lesser]]


def difference(original: nn.Module, small: nn.Module, example: Any) -> float:
    """Return the largest difference of the outputs, as a share of the largest output; infinite if shapes differ.

    What float32 leaves in doubt is decided in float64.
    """
    found = _difference(original, small, example)
    if not 1e-4 < found < 1:
        return found
    try:
        wide = map_tensors(lambda t: t.double(), example)
        return _difference(copy.deepcopy(original).double(), copy.deepcopy(small).double(), wide)
    except RuntimeError:  # code that insists on float32
        return found


def _difference(original: nn.Module, small: nn.Module, example: Any) -> float:
    args, kwargs = arguments(example)
    with torch.no_grad():
        expected = [t for t in tensors_in(original(*args, **kwargs)) if t.is_floating_point()]
        given = [t for t in tensors_in(small(*args, **kwargs)) if t.is_floating_point()]
    if [t.shape for t in expected] != [t.shape for t in given]:
        return float("inf")
    pairs = zip(expected, given, strict=True)
    return max((float((a - b).abs().max() / a.abs().max().clamp_min(1e-30)) for a, b in pairs), default=0.0)
