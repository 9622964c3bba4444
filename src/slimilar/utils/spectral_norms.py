"""Layers under torch's spectral_norm, new and old: weight / sigma, where sigma = u^T W v for two vectors that are held.

In eval mode sigma is a number. It is the same for a part of the weight, if u is scaled by what its product has lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.parametrize import ParametrizationList
from torch.nn.utils.spectral_norm import SpectralNorm

from slimilar.utils.modules import named_modules


@dataclass(frozen=True, eq=False)
class SpectralVectors:
    """The two vectors of a spectral norm and the matrix that they estimate the largest singular value of."""

    u: Tensor
    v: Tensor
    matrix: Tensor

    @property
    def sigma(self) -> Tensor:
        """Their product, by which the weight is divided."""
        return torch.dot(self.u, torch.mv(self.matrix, self.v))


def is_spectral(module: nn.Module) -> bool:
    """Tell whether a module divides a weight by its spectral norm, by a parametrisation or by a hook."""
    return isinstance(module, _SpectralNorm) or _hook(module) is not None


def _hook(module: nn.Module) -> SpectralNorm | None:
    hooks = module._forward_pre_hooks.values()
    return next((hook for hook in hooks if isinstance(hook, SpectralNorm)), None)


def spectral_vectors(model: nn.Module) -> dict[str, SpectralVectors]:
    """Return the vectors of every spectral norm in a model, by the path of the module that holds them."""
    modules = named_modules(model)
    found = {}
    for path, module in modules.items():
        made: Any = module
        if isinstance(module, _SpectralNorm) and hasattr(module, "_u"):
            held = modules[path.rpartition(".")[0]]
            if isinstance(held, ParametrizationList) and len(held) == 1:
                matrix = made._reshape_weight_to_matrix(held.original.detach())
                found[path] = SpectralVectors(made._u, made._v, matrix)
        elif (hook := _hook(module)) is not None:
            u, v, weight = (getattr(made, hook.name + end) for end in ("_u", "_v", "_orig"))
            found[path] = SpectralVectors(u, v, hook.reshape_weight_to_matrix(weight.detach()))
    return found


def keep_sigma(model: nn.Module, small: nn.Module) -> None:
    """Scale the vectors of a smaller model, in place, so that its weights are divided by what the model's are."""
    found = spectral_vectors(small)
    before = spectral_vectors(model) if found else {}
    for path, after in found.items():
        if not after.u.is_meta and after.matrix.shape != before[path].matrix.shape:
            with torch.no_grad():
                ratio = before[path].sigma / after.sigma
                after.u.mul_(torch.where(torch.isfinite(ratio), ratio, torch.ones_like(ratio)))
