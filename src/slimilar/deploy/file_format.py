"""The format of a saved model: a safetensors file whose metadata describes itself in JSON, under a checksum.

What a file says is checked here as far as that goes without a model; `store` does the rest.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from slimilar.errors import StoreError
from slimilar.surgery import serialization as blueprint
from slimilar.surgery.rewrite import Surgery

KEY = "slimilar"  # the one entry of the file's metadata; more would be written in random order
VERSION = 1
# What a file may tell beside the surgery, for people to read.
_TOLD: dict[str, type] = {
    "source": str, "class": str, "criterion": str, "threshold": float, "input": list, "widths": dict, "cost": dict,
    "substitute": str, "made by": dict, "trained for": list, "note": dict, "digest": str,
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Stored:
    """What a saved file says about itself."""

    path: Path
    info: Mapping[str, Any]
    surgery: Surgery
    tied: Mapping[str, str]  # other names of a tensor -> the name under which it is stored
    shapes: Mapping[str, tuple[int, ...]]
    dtypes: Mapping[str, str]

    @property
    def source(self) -> str | None:
        """The name of the model that was pruned, if it was given."""
        return self.info.get("source")


def inspect(path: str | os.PathLike[str]) -> Stored:
    """Return what a saved file says about itself; the weights are not read."""
    file = Path(path).expanduser()
    if not file.is_file():  # a pipe would be waited for
        raise StoreError(f"{file} must be a saved model, but there is no such file; check the path")
    try:
        with safe_open(file, "pt") as opened:
            slices = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118 (not a dict)
            text = (opened.metadata() or {}).get(KEY)
            shapes = {name: tuple(part.get_shape()) for name, part in slices.items()}
            dtypes = {name: str(part.get_dtype()) for name, part in slices.items()}
    except (OSError, SafetensorError) as error:
        raise StoreError(
            f"{file} must be a whole safetensors file, but reading it failed: {error}"
        ) from error
    if text is None:
        raise StoreError(
            f"{file} must be a file that Slimilar saved, but holds weights alone; "
            "name the model and pass the file as its weights"
        )
    info = _parsed(file, text)
    return Stored(file, info, blueprint.decode(info.get("surgery")), _ties(info, shapes), shapes, dtypes)


def read(stored: Stored) -> dict[str, Tensor]:
    """Return the tensors of a file, if it is whole and unaltered."""
    try:
        with safe_open(stored.path, "pt") as opened:
            # Copied, because they would otherwise be windows into the file, which somebody may cut short.
            tensors = {name: opened.get_tensor(name).clone() for name in stored.shapes}
    except (OSError, SafetensorError, RuntimeError, TypeError, AttributeError) as error:
        raise StoreError(f"{stored.path} must be a whole safetensors file, but: {error}") from error
    if digest(stored.info, tensors) != stored.info.get("digest"):
        raise StoreError(
            f"{stored.path} must be as it was saved, but was altered: its checksum differs; save it anew"
        )
    return tensors


def digest(info: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """Return a checksum over all that a file says and holds, so that an altered one is noticed."""
    said = {name: value for name, value in info.items() if name != "digest"}
    total = hashlib.sha256(json.dumps(said, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        total.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        total.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


# --- what a file says ---------------------------------------------------------------------------------------


def _parsed(file: Path, text: str) -> dict[str, Any]:
    try:
        info = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{file} must describe itself in JSON, but: {error}") from error
    if not isinstance(info, dict) or not isinstance(info.get("version"), int):
        raise StoreError(f"{file} must say which version of the format it is, but does not")
    if info["version"] > VERSION:
        raise StoreError(
            f"{file} must be of format {VERSION} or older, got {info['version']}: update slimilar"
        )
    for name, kind in _TOLD.items():
        if not isinstance(info.get(name), kind | None):
            raise StoreError(f"{file} must say {name!r} as save() does, but says it in another way")
    if not all(isinstance(name, str) for name in info.get("trained for") or []):
        raise StoreError(f"{file} must name the criteria it was trained for, but does not")
    if not all(_is_shape(shape) for shape in info.get("input") or []):
        raise StoreError(f"{file} must say which shapes its input has, but does not")
    return info


def _is_shape(shape: Any) -> bool:
    whole = isinstance(shape, list) and all(isinstance(n, int) and 0 < n < 2**20 for n in shape)
    return whole and len(shape) < 8 and math.prod(shape) < 2**28


def _ties(info: Mapping[str, Any], shapes: Mapping[str, Sequence[int]]) -> dict[str, str]:
    tied = info.get("tied", {})
    good = isinstance(tied, dict) and all(
        isinstance(name, str) and name in shapes and other not in shapes for other, name in tied.items()
    )
    if not good:
        raise StoreError("tied tensors must name one that is stored, but do not; the file was altered")
    return dict(tied)
