"""Save and load pruned models: one safetensors file with the weights and a description of the surgery.

    slimilar.save(result, "small.safetensors", source="torchvision:resnet50")
    model = slimilar.load("small.safetensors")                 # if the source is a known name
    model = slimilar.load("small.safetensors", MyNetwork())    # a fresh model of the class that was pruned

Other programs can read the file as a state dict with `safetensors.torch.load_file`. A state dict that `torch.save`
wrote later fits the loaded model (`model.load_state_dict(torch.load(file, weights_only=True))`). The file contains
no pickle, loading runs no code from it, and its entries are checked before memory is allocated.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from slimilar._version import __version__
from slimilar.criteria.base import mark_trained, phases_of
from slimilar.data.preprocessing import Preprocessing
from slimilar.deploy.file_format import KEY, VERSION, Stored, digest, inspect, read
from slimilar.deploy.model_names import parse
from slimilar.deploy.sources import build, build_stored
from slimilar.errors import InvalidInput, Option, StoreError
from slimilar.planning.cost import Cost
from slimilar.result import Result
from slimilar.surgery import serialization
from slimilar.surgery.history import HISTORY
from slimilar.surgery.rewrite import Surgery, operate_on_meta, take
from slimilar.utils.atomic import replacing
from slimilar.utils.modules import check_model, copy_with, named_tensors

_MAX_BYTES = 2**31  # size of a model that is built only because a file names it
NO_SURGERY = Surgery({}, {}, {})


def save(
    pruned: Result | nn.Module,
    path: str | os.PathLike[str],
    *,
    source: str | None = None,
    note: Mapping[str, Any] | None = None,
    inputs: Sequence[Sequence[int]] | None = None,
    preprocessing: Preprocessing | None = None,
) -> Path:
    """Write a pruned model atomically and return the path.

    `pruned` is the result of `prune` or its model, also after further training or pruning. `source` is the name of
    the unpruned model, such as `torchvision:resnet50`; with it, `load` needs no model. `inputs` are the shapes of the
    model's inputs, including the batch, if `pruned` is a model; `preprocessing` describes how images are prepared.
    The command line uses both when it loads the file.
    """
    model = check_model(pruned.model if isinstance(pruned, Result) else pruned)
    history = getattr(model, HISTORY, NO_SURGERY)
    tensors, tied = _tensors(model)
    info = {
        "version": VERSION,
        "made by": {"slimilar": __version__, "torch": torch.__version__},
        "class": f"{type(model).__module__}.{type(model).__qualname__}",
        "source": None if source is None else str(source),
        **({"input": [list(shape) for shape in inputs]} if inputs else {}),
        **(_description(pruned) if isinstance(pruned, Result) else {}),
        **({} if preprocessing is None else {"preprocessing": preprocessing.as_dict()}),
        **({"trained for": sorted(phases_of(model))} if phases_of(model) else {}),
        **({"note": dict(note)} if note else {}),
        "surgery": serialization.encode(history),
        "tied": tied,
    }
    info["digest"] = digest(info, tensors)
    target = Path(path).expanduser()
    try:
        with replacing(target) as unfinished:
            save_file(tensors, unfinished, {KEY: json.dumps(info)})
    except (OSError, SafetensorError) as error:
        raise StoreError(f"{target} could not be written: {error}; any existing file is unchanged") from error
    return target


def load(path: str | os.PathLike[str], model: nn.Module | None = None) -> nn.Module:
    """Return the saved model in evaluation mode. `model` is a fresh instance of its class, and is not modified.

    Without `model`, the model is built from the stored source if that is a known name. A Python file that the saved
    file names is never executed.
    """
    stored = inspect(path)
    fresh = check_model(model) if model is not None else _original(stored)
    serialization.check(stored.surgery, fresh)
    small = _pruned_on_meta(stored, fresh)
    named = _tensors_by_name(stored, small, read(stored))
    devices = {name: t.device for name, t in named_tensors(fresh).items() if not t.is_meta}
    placed = {name: t.to(devices.get(name, t.device)) for name, t in named.items()}
    filled = copy_with(small, {**_unsaved_buffers(stored, fresh, small), **placed})
    setattr(filled, HISTORY, stored.surgery)
    for name in stored.info.get("trained for") or []:
        mark_trained(filled, name)
    return filled.eval()


# --- saving ----------------------------------------------------------------------------------------------------


def _tensors(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the state dict with every tensor once, and the further names of tied tensors."""
    held = model.state_dict(keep_vars=True)
    first: dict[int, str] = {}
    tied, tensors = {}, {}
    for name, tensor in held.items():
        if not isinstance(tensor, Tensor):
            raise InvalidInput(
                f"the state dict of a model must contain only tensors to be saved without pickle, got {name}"
            )
        if tensor.is_meta:
            raise InvalidInput(
                f"a model must be on a real device to be saved, got {name} on the meta device; load its weights first"
            )
        if id(tensor) in first:
            tied[name] = first[id(tensor)]
        else:
            first[id(tensor)] = name
            tensors[name] = tensor.detach().to("cpu").clone(memory_format=torch.contiguous_format)
    return tensors, tied


def _description(result: Result) -> dict[str, Any]:
    cut = result.cut
    return {
        "input": [list(shape) for shape in _inputs(result)],
        "criterion": result.plan.criterion,
        "reconstruction": result.reconstruction,
        **({"fitted images": result.fitted} if result.fitted else {}),
        "threshold": cut.threshold,
        "widths": {g.name: [g.width, cut.widths[g.name]] for g in result.plan.groups},
        "cost": {"before": _cost(cut.before), "after": _cost(cut.cost)},
    }


def _inputs(result: Result) -> list[tuple[int, ...]]:
    """Return the shapes of the example input: dynamic values that are no operator's output."""
    trace = result.plan.structure.trace
    made = {value for op in trace.ops for value in op.outputs}
    return [v.shape for i, v in enumerate(trace.values) if v.dynamic and i not in made]


def _cost(cost: Cost) -> dict[str, int]:
    return {"flops": cost.flops, "macs": cost.macs, "params": cost.params}


# --- loading ---------------------------------------------------------------------------------------------------


def _original(stored: Stored) -> nn.Module:
    if stored.source is None:
        raise StoreError(
            f"{stored.path} does not name the model it was pruned from; pass ",
            _fresh_model("path/file.py:function"),
        )
    if (home := _own_class(stored)) is not None:
        raise StoreError(
            f"{stored.path} was pruned from {stored.source!r}, a Python file, which is run only "
            "if you ask for it: pass ",
            _fresh_model(home),
        )
    try:
        return build_stored(stored.source)
    except InvalidInput as error:
        raise StoreError(
            f"{stored.path} was pruned from {stored.source!r}, which cannot be built: {error}; pass ",
            _fresh_model("MODEL"),
        ) from error


def _fresh_model(base: str) -> Option:
    return Option("base", base, "a fresh model: slimilar.load(path, MyNetwork())")


def _own_class(stored: Stored) -> str | None:
    """Return where the class of a model lives, if that is a Python file: as it was named, or near the saved file."""
    name, _, function = str(stored.source).rpartition(":")
    if not name.endswith(".py") or not function.isidentifier():
        return None
    near = [Path(name), *(folder / name for folder in stored.path.absolute().parents)]
    found = next((file for file in near if file.expanduser().is_file()), near[0])
    return f"{os.path.relpath(found) if found.is_absolute() else found}:{function}"


def _pruned_on_meta(stored: Stored, fresh: nn.Module) -> nn.Module:
    """Return the pruned model on the meta device; its names and shapes must match the file."""
    try:
        small = operate_on_meta(fresh, stored.surgery)
    except Exception as error:  # every part fits, but they may not form a model together
        raise StoreError(f"{stored.path} must fit the model it was pruned from, but: {error}") from error
    wanted = {name: tuple(t.shape) for name, t in small.state_dict().items()}
    given = {**stored.shapes, **{other: stored.shapes[name] for other, name in stored.tied.items()}}
    for name in [*wanted, *given]:
        if wanted.get(name) != given.get(name):
            raise StoreError(
                f"{stored.path} must fit the model it was pruned from, but {name} is {given.get(name, 'missing')} "
                f"in the file and {wanted.get(name, 'missing')} in the model; is it of the same class and options?"
            )
    return small


def _tensors_by_name(stored: Stored, small: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors by the names of the model, which may tie other tensors than the file does."""
    for module, index in stored.surgery.selections.items():
        if tensors[f"{module}.index"].tolist() != index.tolist():
            raise StoreError(
                f"{stored.path} must select the same channels in metadata and tensors, but differs "
                f"at {module}; save the model again"
            )
    everything = {**tensors, **{other: tensors[name].clone() for other, name in stored.tied.items()}}
    held = small.state_dict(keep_vars=True)
    first = {id(tensor): name for name, tensor in reversed(held.items())}
    for name, tensor in held.items():
        if not torch.equal(everything[name], everything[first[id(tensor)]]):
            raise StoreError(
                f"{stored.path} must contain one tensor for {name} and {first[id(tensor)]}, "
                "which the model ties, but contains two"
            )
    return {name: everything[name] for name in named_tensors(small) if name in everything}


def _unsaved_buffers(stored: Stored, fresh: nn.Module, small: nn.Module) -> dict[str, Tensor]:
    """Return the non-persistent buffers, from the fresh model."""
    missing = named_tensors(small).keys() - stored.shapes.keys() - stored.tied.keys()
    held = named_tensors(fresh)
    if any(held[name].is_meta for name in missing):
        size = sum(t.numel() * t.element_size() for t in held.values())
        if size > _MAX_BYTES or stored.source is None:
            raise StoreError(
                f"{stored.path} needs a model of {size:.3g} bytes; pass a fresh model on a real device"
            )
        held = named_tensors(build(parse(stored.source)))
    axes: dict[str, dict[int, Any]] = {}
    for (name, axis), index in stored.surgery.indices.items():
        axes.setdefault(name, {})[axis] = index
    return {name: take(held[name], axes.get(name, {})) for name in missing}
