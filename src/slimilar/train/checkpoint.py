"""Checkpoints of a training run: tensors and JSON in one safetensors file, written atomically."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from slimilar.errors import TrainingError
from slimilar.utils.atomic import write_bytes


def write_file(path: Path, content: bytes) -> None:
    """Write a file of a run; after a crash at any moment it holds either its old or its new content."""
    try:
        write_bytes(path, content, single_writer=True)
    except OSError as error:
        reason = error.strerror or str(error)
        raise TrainingError(
            f"{path} could not be written ({reason}); the previous file is intact, "
            "so free some space or choose another folder, then resume"
        ) from error


def save_checkpoint(path: Path, tensors: dict[str, Tensor], info: dict[str, Any]) -> None:
    """Write tensors and a JSON-able ``info`` into one safetensors file."""
    plain = _separated({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
    broken = [
        name for name, tensor in plain.items() if tensor.is_floating_point() and not tensor.isfinite().all()
    ]
    if broken:
        raise TrainingError(
            f"weights must be finite, but {broken[0]} is not; the previous checkpoint is intact, "
            "so lower the learning rate and start from there"
        )
    write_file(path, to_bytes(plain, {"info": json.dumps(info)}))


def _separated(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copy tensors that share memory with another, as tied weights do; safetensors refuses shared memory."""
    seen: set[int] = set()
    separated = {}
    for name, tensor in tensors.items():
        place = tensor.untyped_storage().data_ptr()
        separated[name] = tensor.clone() if place in seen else tensor
        seen.add(place)
    return separated


def load_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return what ``save_checkpoint`` wrote."""
    try:
        with safe_open(path, "pt") as file:
            info = json.loads(file.metadata()["info"])
            return {name: file.get_tensor(name) for name in file.keys()}, info  # noqa: SIM118 (not a dict)
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise TrainingError(
            f"{path} must be a Slimilar checkpoint, but reading it failed ({error}); "
            "delete it to start again, or restore a copy"
        ) from error


def prefixed(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the same tensors with ``prefix.`` before each name."""
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


def under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors whose name begins with ``prefix.``, without it."""
    return {name[len(prefix) + 1 :]: t for name, t in tensors.items() if name.startswith(f"{prefix}.")}


def optimiser_tensors(optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the momentum buffers by the index of their parameter."""
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
