"""Files that are always whole: the new one takes the old one's place in a single step."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from slimilar.errors import TrainingError


def write_whole(path: Path, content: bytes) -> None:
    """Write a file; after a crash at any moment either the old or the new content is there, whole."""
    # Always the same name: the next write takes over what a killed one left, and no leftovers pile up.
    unfinished = path.with_name(f".{path.name}.unfinished")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(unfinished, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())  # the content must be on the disk before the name points to it
        os.replace(unfinished, path)
        _sync_folder(path.parent)
    except OSError as error:
        reason = error.strerror or str(error)
        raise TrainingError(
            f"{path} could not be written ({reason}); the file as it was before is intact, "
            "so free some space or choose another folder, then resume"
        ) from error
    finally:  # also where Ctrl-C came in between
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    if os.name != "posix":  # elsewhere a folder cannot be opened, and the rename is durable by itself
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def save_checkpoint(path: Path, tensors: dict[str, Tensor], info: dict[str, Any]) -> None:
    """Write tensors and a JSON-able ``info`` into one safetensors file."""
    plain = _apart({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
    broken = [
        name for name, tensor in plain.items() if tensor.is_floating_point() and not tensor.isfinite().all()
    ]
    if broken:
        raise TrainingError(
            f"weights must be finite, but {broken[0]} is not; the checkpoint as it was before is intact, "
            "so lower the learning rate and start from there"
        )
    write_whole(path, to_bytes(plain, {"info": json.dumps(info)}))


def _apart(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copy tensors that share memory with another, as tied weights do; safetensors wants each on its own."""
    seen: set[int] = set()
    apart = {}
    for name, tensor in tensors.items():
        place = tensor.untyped_storage().data_ptr()
        apart[name] = tensor.clone() if place in seen else tensor
        seen.add(place)
    return apart


def load_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return what ``save_checkpoint`` wrote."""
    try:
        with safe_open(path, "pt") as file:
            info = json.loads(file.metadata()["info"])
            return {name: file.get_tensor(name) for name in file.keys()}, info  # noqa: SIM118 (not a dict)
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise TrainingError(
            f"{path} must be a checkpoint of this program, but reading it failed ({error}); "
            "delete it to start anew, or put a copy in its place"
        ) from error


def prefixed(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the same tensors with ``prefix.`` before each name."""
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


def under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors whose name begins with ``prefix.``, without it."""
    return {name[len(prefix) + 1 :]: t for name, t in tensors.items() if name.startswith(f"{prefix}.")}


def optimiser_tensors(optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the momentum buffers by the number of their parameter."""
    state = optimiser.state_dict()["state"]
    return {
        str(number): entry["momentum_buffer"]
        for number, entry in state.items()
        if entry.get("momentum_buffer") is not None
    }


def load_optimiser(optimiser: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Put momentum buffers back, each in the memory layout of its parameter."""
    parameters = [p for group in optimiser.param_groups for p in group["params"]]
    for number, tensor in tensors.items():
        parameter = parameters[int(number)]
        optimiser.state[parameter]["momentum_buffer"] = torch.empty_like(parameter).copy_(tensor).detach()
