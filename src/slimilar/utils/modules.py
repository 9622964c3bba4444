"""Copies of the user's model: with other tensors, or with shapes only. The model itself is never touched."""

from __future__ import annotations

import copy
from collections import Counter, OrderedDict
from collections.abc import Mapping
from functools import cache
from itertools import chain
from typing import Any
from warnings import warn

import torch
from torch import Tensor, nn

from slimilar.errors import InvalidInput, SlimilarWarning


def unwrap(model: nn.Module) -> nn.Module:
    """Return the user's own module inside DataParallel, DistributedDataParallel or torch.compile."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            inner, kind = model.module, type(model).__name__
            told = f"the model inside {kind} is used, and what is returned is not wrapped: wrap it in {kind} again"
            warn(told, SlimilarWarning, stacklevel=4)
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def check_model(model: object) -> nn.Module:
    """Refuse what is not a module whose code can run again with other widths."""
    if not isinstance(model, nn.Module):
        raise InvalidInput(f"model must be a torch.nn.Module, got {type(model).__name__}")
    model = unwrap(model)
    modules = named_modules(model).values()
    if any(type(p).__name__ in ("DTensor", "FlatParameter") for m in modules for p in m._parameters.values()):
        raise InvalidInput(
            "model must hold whole parameters, got shards (FSDP or DTensor): gather the full state and load it "
            "into a plain model first"
        )
    if any(isinstance(m, torch.jit.ScriptModule) for m in modules):
        raise InvalidInput(
            "model must be ordinary Python modules, got TorchScript, which is frozen: "
            "pass the module that was given to torch.jit.script or torch.jit.trace"
        )
    return model


def device_of(model: nn.Module) -> torch.device:
    """Return where a model is: the device of its first parameter or buffer."""
    return next((t.device for t in chain(model.parameters(), model.buffers())), torch.device("cpu"))


def named_modules(model: nn.Module) -> dict[str, nn.Module]:
    """Return every module once, by its first path: what torch's method of that name yields, several times faster."""
    found = {"": model}
    _enter_modules(found, {id(model)}, "", model)
    return found


def _enter_modules(found: dict[str, nn.Module], seen: set[int], start: str, module: nn.Module) -> None:
    for name, child in module._modules.items():
        if child is not None and id(child) not in seen:
            seen.add(id(child))
            found[start + name] = child
            if child._modules:
                _enter_modules(found, seen, f"{start}{name}.", child)


def named_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return parameters by name, tied ones once."""
    found: dict[str, nn.Parameter] = {}
    seen: set[int] = set()
    for path, module in named_modules(model).items():
        for name, tensor in module._parameters.items():
            if tensor is not None and id(tensor) not in seen:
                seen.add(id(tensor))
                found[f"{path}.{name}" if path else name] = tensor
    return found


def named_tensors(model: nn.Module, modules: Mapping[str, nn.Module] | None = None) -> dict[str, Tensor]:
    """Return parameters and buffers by name, tied ones once; `modules` are the model's by path, if known."""
    parameters: dict[str, Tensor] = {}
    buffers: dict[str, Tensor] = {}
    seen: set[int] = set()
    for path, module in (named_modules(model) if modules is None else modules).items():
        start = f"{path}." if path else ""
        for held, found in ((module._parameters, parameters), (module._buffers, buffers)):
            for name, tensor in held.items():
                if tensor is not None and id(tensor) not in seen:
                    seen.add(id(tensor))
                    found[start + name] = tensor
    return {**parameters, **buffers}


def copy_with(
    model: nn.Module, tensors: Mapping[str, Tensor], held: Mapping[str, Tensor] | None = None
) -> nn.Module:
    """Return a deep copy of a model that holds the given tensors instead of its own; nothing else is shared.

    Names that are not given keep a copy of their tensor. Tied tensors stay tied. `held` are the model's own, if known.
    """
    held = named_tensors(model) if held is None else held
    memo: dict[int, Any] = {}
    for name, old in held.items():
        new = tensors.get(name)
        if new is not None:
            if _is_parameter(old) and not _is_parameter(new):
                new = nn.Parameter(new, requires_grad=old.requires_grad)
            memo[id(old)] = new
    memo.update(_clones([t for name, t in held.items() if name not in tensors]))
    return _copied(model, memo)


def _is_parameter(tensor: Tensor) -> bool:
    """Tell what `isinstance` does, which for parameters is slow: it also asks tensors of other classes."""
    kind = type(tensor)
    return kind is nn.Parameter or (kind is not Tensor and isinstance(tensor, nn.Parameter))


def _clones(tensors: list[Tensor]) -> dict[int, Tensor]:
    """Return copies of ordinary tensors, by identity; `copy.deepcopy` takes ten times as long for the same."""
    found: dict[int, Tensor] = {}
    plain = [t for t in tensors if type(t) is Tensor and t.layout is torch.strided and not t.is_quantized]
    sharing = Counter(t.untyped_storage()._cdata for t in plain)
    for t in plain:
        if sharing[t.untyped_storage()._cdata] == 1 and _is_alone(t):
            found[id(t)] = t.clone()
    for t in tensors:
        if type(t) is nn.Parameter and t.layout is torch.strided:
            found[id(t)] = nn.Parameter(t.detach().clone(), requires_grad=t.requires_grad)
    return found


def _is_alone(tensor: Tensor) -> bool:
    """Tell whether a tensor is all there is in its memory, and no more than its numbers."""
    whole = tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes()
    return (
        whole and tensor.is_contiguous() and not tensor.requires_grad and tensor.is_leaf and not vars(tensor)
    )


def in_eval_mode(model: nn.Module) -> nn.Module:
    """Switch a model to eval mode, if any of it is not, and return it; to ask is several times faster."""
    return model.eval() if any(m.training for m in named_modules(model).values()) else model


def eval_view(model: nn.Module) -> nn.Module:
    """Return a copy in eval mode that shares the parameters and has its own buffers: running it changes nothing."""
    held = named_tensors(model)
    own = {name: t.detach() if _is_parameter(t) else t.detach().clone() for name, t in held.items()}
    return in_eval_mode(copy_with(model, own, held))


# What copy.deepcopy returns as it is; asked here, because a network has tens of thousands of such attributes.
_ATOMIC = frozenset(
    {type(None), bool, int, float, complex, str, bytes, type, torch.dtype, torch.device, torch.Size}
)


_HOLDERS = frozenset({"_parameters", "_buffers", "_modules"})  # of every module, by name

_PLAIN = frozenset({dict, OrderedDict, set, list})  # every module has a dozen of them that are empty


def _copied(module: nn.Module, memo: dict[int, Any]) -> nn.Module:
    """Return what `copy.deepcopy` does, several times faster for modules that do not say how they are copied."""
    if id(module) in memo:
        found: nn.Module = memo[id(module)]
        return found
    if _says_how(type(module)):  # type: ignore[arg-type]  # mypy asks the instances, not the class, for a hash
        return copy.deepcopy(module, memo)
    new: nn.Module = object.__new__(type(module))
    memo[id(module)] = new
    held = vars(new)
    held.update(vars(module))
    for name, value in vars(module).items():
        kind = type(value)
        if kind in _ATOMIC:
            continue
        if kind in _PLAIN and not value:
            held[name] = kind()
        elif kind is dict and name in _HOLDERS and id(value) not in memo:
            copied = memo[id(value)] = {}
            for key, x in value.items():
                copied[key] = x if x is None else _copied_value(x, memo)
            held[name] = copied
        else:
            held[name] = _copied_value(value, memo)
    held.pop("_compiled_call_impl", None)  # left out by nn.Module.__getstate__ too
    return new


def _copied_value(value: Any, memo: dict[int, Any]) -> Any:
    if id(value) in memo:
        return memo[id(value)]
    kind = type(value)
    if kind is tuple and all(type(x) in _ATOMIC for x in value):
        return value
    if kind in (set, list) and all(type(x) in _ATOMIC for x in value):
        same = memo[id(value)] = value.copy()
        return same
    if kind in (dict, OrderedDict) and all(type(key) in _ATOMIC for key in value):
        made = memo[id(value)] = kind()
        for key, x in value.items():
            made[key] = x if type(x) in _ATOMIC else _copied_value(x, memo)
        return made
    if isinstance(value, Tensor) and not value.is_leaf:  # computed from others, which copy.deepcopy refuses
        memo[id(value)] = value.detach().clone()
        return memo[id(value)]
    return _copied(value, memo) if isinstance(value, nn.Module) else copy.deepcopy(value, memo)


@cache
def _says_how(kind: type[nn.Module]) -> bool:
    """Tell whether a class has its own way of being copied; torch's `__setstate__` only mends old files."""
    own = {"__deepcopy__", "__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__slots__"}
    return any(_ways(c) & own for c in kind.__mro__[:-1] if c is not nn.Module)


def _ways(kind: type) -> set[str]:
    return set(vars(kind)) - ({"__setstate__"} if kind.__module__.startswith("torch.nn.") else set())


def on_meta(model: nn.Module, sizes: Mapping[tuple[str, int], int] | None = None) -> nn.Module:
    """Return a copy in eval mode whose tensors have a shape but no memory; its hooks come along.

    `sizes` are those of the axes, by tensor and number, that are not as long as the model's.
    """
    held = named_tensors(model)
    shapes: dict[str, list[int]] = {}
    for (name, axis), size in (sizes or {}).items():
        shapes.setdefault(name, list(held[name].shape))[axis] = size
    empty = {
        name: torch.empty(shapes.get(name, t.shape), dtype=t.dtype, device="meta") for name, t in held.items()
    }
    return in_eval_mode(copy_with(model, empty, held))
