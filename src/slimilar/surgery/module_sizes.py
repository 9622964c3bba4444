"""The sizes that modules state about themselves, made to agree with smaller tensors."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from torch import nn
from torch.nn.utils.spectral_norm import SpectralNorm as SpectralNormHook
from torch.nn.utils.weight_norm import WeightNorm as WeightNormHook


def set_number(module: nn.Module, attribute: str, item: int | None, value: int) -> None:
    """Set a size that a module holds in an attribute, or in an entry of a list or tuple."""
    if item is None:
        setattr(module, attribute, value)
        return
    held = getattr(module, attribute)
    setattr(module, attribute, type(held)(value if i == item else v for i, v in enumerate(held)))


def recompute_weights(module: nn.Module) -> None:
    """Compute weights again that a hook of torch's older weight_norm or spectral_norm computes before every forward."""
    for hook in module._forward_pre_hooks.values():
        if isinstance(hook, WeightNormHook):
            setattr(module, hook.name, hook.compute_weight(module))
        elif isinstance(hook, SpectralNormHook):
            setattr(module, hook.name, hook.compute_weight(module, do_power_iteration=False))


def describe(module: nn.Module) -> None:
    """Set the attributes in which a standard module states its own size."""
    for function in _descriptions(type(module)):  # type: ignore[arg-type]  # mypy asks instances for a hash
        for name, value in function(module).items():
            if getattr(module, name, None) != value:
                setattr(module, name, value)


@cache
def _descriptions(kind: type) -> list[Callable[[Any], dict[str, Any]]]:
    return [function for kinds, function in _DESCRIBE if issubclass(kind, kinds)]


def _conv(m: Any) -> dict[str, Any]:
    a, b = m.weight.shape[0], m.weight.shape[1] * m.groups
    return {"in_channels": a, "out_channels": b} if m.transposed else {"in_channels": b, "out_channels": a}


def _norm(m: Any) -> dict[str, Any]:
    held = m.weight if m.weight is not None else m.running_mean
    return {} if held is None else {"num_features": held.shape[0]}


def _layer_norm(m: Any) -> dict[str, Any]:
    return {} if m.weight is None else {"normalized_shape": tuple(m.weight.shape)}


_GATES = {"LSTM": 4, "GRU": 3, "RNN_TANH": 1, "RNN_RELU": 1}


def _recurrent(m: Any) -> dict[str, Any]:
    rows, read = m.weight_ih_l0.shape
    sizes = {"input_size": read, "hidden_size": rows // _GATES[m.mode]}
    return {**sizes, "proj_size": m.weight_hr_l0.shape[0]} if m.proj_size else sizes


def _recurrent_cell(m: Any) -> dict[str, Any]:
    return {"input_size": m.weight_ih.shape[1], "hidden_size": m.weight_hh.shape[1]}


_DESCRIBE: list[tuple[Any, Callable[[Any], dict[str, Any]]]] = [
    (nn.modules.conv._ConvNd, _conv),
    (nn.Linear, lambda m: {"out_features": m.weight.shape[0], "in_features": m.weight.shape[1]}),
    (nn.modules.batchnorm._NormBase, _norm),
    (nn.GroupNorm, lambda m: {} if m.weight is None else {"num_channels": m.weight.shape[0]}),
    (nn.LayerNorm, _layer_norm),
    (nn.RNNBase, _recurrent),
    (nn.RNNCellBase, _recurrent_cell),
    (nn.PReLU, lambda m: {"num_parameters": m.weight.shape[0]}),
]
