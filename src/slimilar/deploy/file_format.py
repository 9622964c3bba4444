"""The format of a saved model: a safetensors file with JSON metadata and a checksum.

This module checks what can be checked without a model; `store` does the rest.
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

from slimilar.data.preprocessing import Preprocessing
from slimilar.deploy.model_names import check_saved_file
from slimilar.errors import StoreError
from slimilar.surgery import serialization
from slimilar.surgery.rewrite import Surgery

KEY = "slimilar"  # the only metadata entry: safetensors writes several in random order
VERSION = 1
# Optional entries beside the surgery, and their types.
_OPTIONAL: dict[str, type] = {
    "source": str, "class": str, "criterion": str, "threshold": float, "input": list, "widths": dict, "cost": dict,
    "reconstruction": str, "substitute": str,  # the latter in files of earlier versions
    "made by": dict, "trained for": list, "note": dict, "digest": str, "preprocessing": dict,
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Stored:
    """The metadata of a saved file, checked."""

    path: Path
    info: Mapping[str, Any]
    surgery: Surgery
    tied: Mapping[str, str]  # further name of a tensor -> the name under which it is stored
    shapes: Mapping[str, tuple[int, ...]]
    dtypes: Mapping[str, str]

    @property
    def preprocessing(self) -> Preprocessing | None:
        """How images are prepared for the model, if that was saved."""
        found = self.info.get("preprocessing")
        return None if found is None else Preprocessing.from_dict(found)

    @property
    def source(self) -> str | None:
        """The name of the unpruned model, if it was given."""
        return self.info.get("source")


def _unreadable(file: Path, error: Exception) -> str:
    """Return what is wrong with a file: another kind of file, or a damaged one."""
    if file.suffix != ".safetensors":
        return f"{file} must be a saved model, a .safetensors file, but has another suffix; pass the .safetensors file"
    return f"{file} must be a complete safetensors file, but reading it failed: {error}; was it copied completely?"


def inspect(path: str | os.PathLike[str]) -> Stored:
    """Return the metadata of a saved file, without reading the weights."""
    file = check_saved_file(path)
    try:
        with safe_open(file, "pt") as opened:
            slices = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118 (not a dict)
            text = (opened.metadata() or {}).get(KEY)
            shapes = {name: tuple(part.get_shape()) for name, part in slices.items()}
            dtypes = {name: str(part.get_dtype()) for name, part in slices.items()}
    except (OSError, SafetensorError) as error:
        raise StoreError(_unreadable(file, error)) from error
    if text is None:
        raise StoreError(
            f"{file} must be a file that Slimilar saved, but contains only weights; "
            "name the model, and pass this file as its weights"
        )
    info = _parsed(file, text)
    return Stored(file, info, serialization.decode(info.get("surgery")), _ties(info, shapes), shapes, dtypes)


def read(stored: Stored) -> dict[str, Tensor]:
    """Return the tensors of a file, after verifying its checksum."""
    try:
        with safe_open(stored.path, "pt") as opened:
            # Copied, because the tensors are memory-mapped and the file may be truncated later.
            tensors = {name: opened.get_tensor(name).clone() for name in stored.shapes}
    except (OSError, SafetensorError, RuntimeError, TypeError, AttributeError) as error:
        raise StoreError(f"{stored.path} must be a complete safetensors file, but: {error}") from error
    if digest(stored.info, tensors) != stored.info.get("digest"):
        raise StoreError(
            f"{stored.path} must be unchanged since it was saved, but its checksum differs; save it again"
        )
    return tensors


def digest(info: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of the metadata and all tensors."""
    described = {name: value for name, value in info.items() if name != "digest"}
    total = hashlib.sha256(json.dumps(described, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        total.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        total.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


# --- checking metadata ---------------------------------------------------------------------------------------


def _parsed(file: Path, text: str) -> dict[str, Any]:
    try:
        info = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{file} must have JSON metadata, but: {error}") from error
    if not isinstance(info, dict) or not isinstance(info.get("version"), int):
        raise StoreError(
            f"{file} must state the version of its format, but does not; was it saved by slimilar.save?"
        )
    if info["version"] > VERSION:
        raise StoreError(
            f"{file} must have format version {VERSION} or older, got {info['version']}: update slimilar"
        )
    for name, kind in _OPTIONAL.items():
        if not isinstance(info.get(name), kind | None):
            raise StoreError(
                f"{file} must have {kind.__name__} as {name!r}, got {type(info[name]).__name__}; save it again"
            )
    if not all(isinstance(name, str) for name in info.get("trained for") or []):
        raise StoreError(f"{file} must list names of criteria as 'trained for', but does not; save it again")
    if not all(_is_shape(shape) for shape in info.get("input") or []):
        raise StoreError(f"{file} must list the shapes of its inputs as 'input', but does not; save it again")
    return info


def _is_shape(shape: Any) -> bool:
    whole = isinstance(shape, list) and all(isinstance(n, int) and 0 < n < 2**20 for n in shape)
    return whole and len(shape) < 8 and math.prod(shape) < 2**28


def _ties(info: Mapping[str, Any], shapes: Mapping[str, Sequence[int]]) -> dict[str, str]:
    tied = info.get("tied", {})
    valid = isinstance(tied, dict) and all(
        isinstance(name, str) and name in shapes and other not in shapes for other, name in tied.items()
    )
    if not valid:
        raise StoreError("tied tensors must refer to a stored tensor, but do not; save the model again")
    return dict(tied)
