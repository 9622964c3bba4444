"""Saving and loading: one safetensors file with the smaller weights and a description of how they came about.

    slimilar.save(result, "small.safetensors", source="torchvision:resnet50")
    model = slimilar.load("small.safetensors")                 # where the source is a known name
    model = slimilar.load("small.safetensors", MyNetwork())    # a fresh model of the class that was pruned

The file is an ordinary state dict for everybody else: `safetensors.torch.load_file` reads it, and a state dict that
`torch.save` wrote later fits the loaded model (`model.load_state_dict(torch.load(file, weights_only=True))`).
There is no pickle in it, loading runs no code of it, and all it says is checked before memory is asked for.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from slimilar._version import __version__
from slimilar.criteria.base import mark_trained, phases_of
from slimilar.deploy.file_format import KEY, VERSION, Stored, digest, inspect, read
from slimilar.deploy.sources import build, build_stored, parse
from slimilar.errors import InvalidInput, StoreError
from slimilar.pipeline import HISTORY, Result
from slimilar.planning.cost import Cost
from slimilar.surgery import serialization as blueprint
from slimilar.surgery.rewrite import Surgery, operate_on_meta, take
from slimilar.utils.atomic import replacing
from slimilar.utils.modules import check_model, copy_with, named_tensors

_LARGEST = 2**31  # bytes of a fresh model that a file alone may ask for
NOTHING = Surgery({}, {}, {})


def save(
    pruned: Result | nn.Module,
    path: str | os.PathLike[str],
    *,
    source: str | None = None,
    note: Mapping[str, Any] | None = None,
) -> Path:
    """Write a pruned model, whole or not at all, and return where.

    Takes the result of `prune`, or its model, also after it was trained or pruned again. `source` is the name of
    the unpruned model, such as `torchvision:resnet50`: with it the file can be loaded without a model at hand.
    """
    model = check_model(pruned.model if isinstance(pruned, Result) else pruned)
    history = getattr(model, HISTORY, NOTHING)
    tensors, tied = _tensors(model)
    info = {
        "version": VERSION,
        "made by": {"slimilar": __version__, "torch": torch.__version__},
        "class": f"{type(model).__module__}.{type(model).__qualname__}",
        "source": None if source is None else str(source),
        **(_told(pruned) if isinstance(pruned, Result) else {}),
        **({"trained for": sorted(phases_of(model))} if phases_of(model) else {}),
        **({"note": dict(note)} if note else {}),
        "surgery": blueprint.encode(history),
        "tied": tied,
    }
    info["digest"] = digest(info, tensors)
    target = Path(path).expanduser()
    try:
        with replacing(target) as unfinished:
            save_file(tensors, unfinished, {KEY: json.dumps(info)})
    except (OSError, SafetensorError) as error:
        raise StoreError(
            f"{target} could not be written: {error}; what was there before is intact"
        ) from error
    return target


def load(path: str | os.PathLike[str], model: nn.Module | None = None) -> nn.Module:
    """Return the saved model, in evaluation mode; the given fresh one of its class is left as it was.

    Without `model` it is built from the stored source, if that is one of the known names (not a Python file:
    loading runs no code that a file asks for).
    """
    stored = inspect(path)
    fresh = check_model(model) if model is not None else _fresh(stored)
    blueprint.check(stored.surgery, fresh)
    small = _empty(stored, fresh)
    named = _named(stored, small, read(stored))
    homes = {name: t.device for name, t in named_tensors(fresh).items() if not t.is_meta}
    placed = {name: t.to(homes.get(name, t.device)) for name, t in named.items()}
    filled = copy_with(small, {**_rest(stored, fresh, small), **placed})
    setattr(filled, HISTORY, stored.surgery)
    for name in stored.info.get("trained for") or []:
        mark_trained(filled, name)
    return filled.eval()


# --- saving ----------------------------------------------------------------------------------------------------


def _tensors(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the state dict, every tensor once, and the other names of tied ones."""
    held = model.state_dict(keep_vars=True)
    first: dict[int, str] = {}
    tied, tensors = {}, {}
    for name, tensor in held.items():
        if not isinstance(tensor, Tensor):
            raise InvalidInput(f"the state of a model must be tensors to be saved without pickle, got {name}")
        if tensor.is_meta:
            raise InvalidInput(f"a model must hold numbers to be saved, got {name} on the meta device")
        if id(tensor) in first:
            tied[name] = first[id(tensor)]
        else:
            first[id(tensor)] = name
            tensors[name] = tensor.detach().to("cpu").clone(memory_format=torch.contiguous_format)
    return tensors, tied


def _told(result: Result) -> dict[str, Any]:
    cut = result.cut
    return {
        "input": [list(shape) for shape in _inputs(result)],
        "criterion": result.plan.criterion,
        "substitute": result.substitute,
        "threshold": cut.threshold,
        "widths": {g.name: [g.width, cut.widths[g.name]] for g in result.plan.groups},
        "cost": {"before": _cost(cut.before), "after": _cost(cut.cost)},
    }


def _inputs(result: Result) -> list[tuple[int, ...]]:
    """Return the shapes of the example input: what depends on it and no operator made."""
    trace = result.plan.structure.trace
    made = {value for op in trace.ops for value in op.outputs}
    return [v.shape for i, v in enumerate(trace.values) if v.dynamic and i not in made]


def _cost(cost: Cost) -> dict[str, int]:
    return {"flops": cost.flops, "macs": cost.macs, "params": cost.params}


# --- loading ---------------------------------------------------------------------------------------------------


def _fresh(stored: Stored) -> nn.Module:
    if stored.source is None:
        raise StoreError(
            f"{stored.path} does not say which model it was made from; "
            "pass a fresh one: slimilar.load(path, MyNetwork())"
        )
    try:
        return build_stored(stored.source)
    except InvalidInput as error:
        raise StoreError(
            f"{stored.path} was made from {stored.source!r}, which cannot be built: {error}; "
            "pass a fresh one: slimilar.load(path, MyNetwork())"
        ) from error


def _empty(stored: Stored, fresh: nn.Module) -> nn.Module:
    """Return the smaller model without memory; its tensors must be those of the file."""
    try:
        small = operate_on_meta(fresh, stored.surgery)
    except Exception as error:  # the parts fit one by one; together they may still make no model
        raise StoreError(f"{stored.path} must fit the model it was made from, but: {error}") from error
    wanted = {name: tuple(t.shape) for name, t in small.state_dict().items()}
    given = {**stored.shapes, **{other: stored.shapes[name] for other, name in stored.tied.items()}}
    for name in [*wanted, *given]:
        if wanted.get(name) != given.get(name):
            raise StoreError(
                f"{stored.path} must fit the model it was made from, but {name} is {given.get(name, 'missing')} "
                f"in the file and {wanted.get(name, 'missing')} in the model; is it of the same class and options?"
            )
    return small


def _named(stored: Stored, small: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a file under the names of the model, in which others may be tied than in the file."""
    for module, index in stored.surgery.selections.items():
        if tensors[f"{module}.index"].tolist() != index.tolist():
            raise StoreError(f"{stored.path} must select the same channels twice, but does not at {module}")
    everything = {**tensors, **{other: tensors[name].clone() for other, name in stored.tied.items()}}
    held = small.state_dict(keep_vars=True)
    first = {id(tensor): name for name, tensor in reversed(held.items())}
    for name, tensor in held.items():
        if not torch.equal(everything[name], everything[first[id(tensor)]]):
            raise StoreError(
                f"{stored.path} must hold one tensor for {name} and {first[id(tensor)]}, but holds two"
            )
    return {name: everything[name] for name in named_tensors(small) if name in everything}


def _rest(stored: Stored, fresh: nn.Module, small: nn.Module) -> dict[str, Tensor]:
    """Return the buffers that a state dict leaves out, from the fresh model."""
    missing = named_tensors(small).keys() - stored.shapes.keys() - stored.tied.keys()
    held = named_tensors(fresh)
    if any(held[name].is_meta for name in missing):
        size = sum(t.numel() * t.element_size() for t in held.values())
        if size > _LARGEST or stored.source is None:
            raise StoreError(
                f"{stored.path} asks for a model of {size:.3g} bytes; pass a fresh one with numbers"
            )
        held = named_tensors(build(parse(stored.source)))
    axes: dict[str, dict[int, Any]] = {}
    for (name, axis), index in stored.surgery.indices.items():
        axes.setdefault(name, {})[axis] = index
    return {name: take(held[name], axes.get(name, {})) for name in missing}
