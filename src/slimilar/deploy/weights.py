"""Read weights from safetensors and `torch.save` files; wrappers and prefixes are removed.

Pickles are read with `weights_only=True`, which executes no code from the file.
"""

from __future__ import annotations

import os
import pickle
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from slimilar.deploy.file_format import KEY
from slimilar.deploy.model_names import check_weights_file
from slimilar.errors import DataError, InvalidInput

_WRAPPERS = (
    "state_dict",
    "model_state_dict",
    "model",
    "net",
    "network",
    "module",
    "params",
    "weights",
    "ema",
)


def fill_(model: nn.Module, path: str | os.PathLike[str]) -> nn.Module:
    """Load the weights of a file into a model, in place, and return the model."""
    state = matched(read(path), model)
    held = model.state_dict()
    for name, tensor in state.items():
        if tensor.shape != held[name].shape:
            raise InvalidInput(
                f"{path} must fit the model, but {name} is {tuple(tensor.shape)} in the file and "
                f"{tuple(held[name].shape)} in the model; {_other_shapes(path)}"
            )
    model.load_state_dict(state, strict=False)
    return model


def _other_shapes(path: str | os.PathLike[str]) -> str:
    """Return what to do about tensors of other shapes: a pruned model is loaded, not filled in."""
    if Path(path).suffix == ".safetensors":
        with safe_open(Path(path).expanduser(), "pt") as opened:
            if KEY in (opened.metadata() or {}):
                return "it is a pruned model: name the file itself as the model"
    return "does it need other options (classes=..., num_classes=...)?"


def read(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """Return the tensors of a file by name, without wrappers."""
    file = check_weights_file(path)
    if file.suffix == ".safetensors":
        try:
            return load_file(file)
        except (OSError, SafetensorError) as error:
            raise DataError(
                f"{file} must be a complete safetensors file, but: {error}; was it copied completely?"
            ) from error
    try:
        found = torch.load(file, map_location="cpu", weights_only=True)
    except (
        pickle.UnpicklingError,
        RuntimeError,
        OSError,
        EOFError,
        ValueError,
        KeyError,
        AttributeError,
    ) as error:
        raise DataError(
            f"{file} must contain only weights, but cannot be read without running code, or is damaged; "
            "save model.state_dict() again, as safetensors or with torch.save"
        ) from error
    return _unwrapped(found, file)


def _unwrapped(found: Any, file: Path) -> dict[str, Tensor]:
    """Return the state dict inside wrappers such as {"epoch": 3, "state_dict": {...}}."""
    while isinstance(found, Mapping):
        tensors = {str(name): t for name, t in found.items() if isinstance(t, Tensor)}
        inner = next((found[n] for n in _WRAPPERS if isinstance(found.get(n), Mapping)), None)
        if inner is None:
            if tensors:
                return tensors
            break
        found = inner
    raise DataError(
        f"{file} must contain a state dict (names and tensors), but does not; save model.state_dict()"
    )


def matched(state: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """Return a state dict by the names of a model: a prefix such as `module.` is removed, and nothing may be missing.

    >>> list(matched({"module.weight": torch.zeros(2, 2)}, nn.Linear(2, 2, bias=False)))
    ['weight']
    """
    wanted = model.state_dict().keys()
    prefix = _prefix(state, wanted)
    given = {name.removeprefix(prefix): t for name, t in state.items() if name.startswith(prefix)}
    # Many files omit the step counters of batch norms, which inference does not use.
    missing = sorted(n for n in wanted - given.keys() if not n.endswith("num_batches_tracked"))
    unknown = sorted(given.keys() - wanted)
    if missing or unknown:
        what = f"{missing[0]} is missing" if missing else f"{unknown[0]} is not part of the model"
        more = f"{len(missing)} missing, {len(unknown)} unknown"
        raise InvalidInput(
            f"weights must fit the model, but {what} ({more}); do they belong to another architecture?"
        )
    return given


def _prefix(state: Mapping[str, Tensor], wanted: Any) -> str:
    """Return the prefix that most names in a file have before those of the model."""
    found: Counter[str] = Counter()
    for name in state:
        parts = name.split(".")
        for i in range(len(parts)):
            if ".".join(parts[i:]) in wanted:
                found["".join(f"{part}." for part in parts[:i])] += 1
                break
    return found.most_common(1)[0][0] if found else ""
