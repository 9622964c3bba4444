"""Copies of the user's model: with other tensors, or with shapes only. The model itself is never touched."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from slimilar.errors import InvalidInput


def unwrap(model: nn.Module) -> nn.Module:
    """Return the user's own module inside DataParallel, DistributedDataParallel or torch.compile."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            inner = model.module
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def check_model(model: object) -> nn.Module:
    """Refuse what is not a module whose code can run again with other widths."""
    if not isinstance(model, nn.Module):
        raise InvalidInput(f"model must be a torch.nn.Module, got {type(model).__name__}")
    model = unwrap(model)
    if any(isinstance(m, torch.jit.ScriptModule) for m in model.modules()):
        raise InvalidInput(
            "model must be ordinary Python modules, got TorchScript, which is frozen: "
            "pass the module that was given to torch.jit.script or torch.jit.trace"
        )
    return model


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return parameters and buffers by name, tied ones once."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def copy_with(model: nn.Module, tensors: Mapping[str, Tensor]) -> nn.Module:
    """Return a deep copy of a model that holds the given tensors instead of its own; nothing else is shared.

    Names that are not given keep a copy of their tensor. Tied tensors stay tied.
    """
    memo: dict[int, Any] = {}
    for name, old in named_tensors(model).items():
        if name in tensors:
            new = tensors[name]
            if isinstance(old, nn.Parameter) and not isinstance(new, nn.Parameter):
                new = nn.Parameter(new, requires_grad=old.requires_grad)
            memo[id(old)] = new
    return copy.deepcopy(model, memo)


def on_meta(model: nn.Module, shapes: Mapping[str, tuple[int, ...]] | None = None) -> nn.Module:
    """Return a copy in eval mode whose tensors have a shape but no memory; its hooks come along."""
    shapes = shapes or {}
    empty = {
        name: torch.empty(shapes.get(name, tuple(t.shape)), dtype=t.dtype, device="meta")
        for name, t in named_tensors(model).items()
    }
    return copy_with(model, empty).eval()
