"""Devices by name, their memory and their clocks."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from typing import Any

import torch

from slimilar.errors import InvalidInput, Option
from slimilar.utils.provenance import processor

CPU = torch.device("cpu")
_DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}


def device_named(name: str) -> torch.device:
    """Return a device of this machine; "auto" is its accelerator if there is one, else the CPU.

    >>> device_named("cpu")
    device(type='cpu')
    """
    if name == "auto":
        found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        return found or CPU
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise InvalidInput(
            Option("device"), f" must be auto, cpu, cuda, cuda:1, mps or xpu, got {name!r}"
        ) from error
    if device.type != "cpu" and (device.index or 0) >= _count(device.type):
        raise InvalidInput(
            Option("device"), f" must be one of this machine's, got {name!r}: there is {_listed()}"
        )
    return device


def _count(kind: str) -> int:
    """Return how many devices of a kind can be used."""
    try:
        module: Any = torch.get_device_module(kind)
        return int(module.device_count()) if module.is_available() else 0
    except (RuntimeError, AttributeError):
        return 0


def _listed() -> str:
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    others = [] if found is None else [f"{found.type}:{i}" for i in range(_count(found.type))]
    return " and ".join(["cpu", *others])


def dtype_named(name: str, device: torch.device) -> torch.dtype:
    """Return a precision that a device computes in.

    >>> dtype_named("float64", torch.device("cpu"))
    torch.float64
    """
    from slimilar.utils.precision import has_float64

    if name not in _DTYPES:
        raise InvalidInput(Option("dtype"), f" must be one of {', '.join(_DTYPES)}, got {name!r}")
    if name == "float64" and not has_float64(device):
        raise InvalidInput(Option("dtype"), f" must be one that {device} has, got float64; use float32")
    if name == "bfloat16" and device.type == "cpu" and not cpu_has_bfloat16():
        raise InvalidInput(
            Option("dtype"), " must be one that this CPU supports, got bfloat16, which fails with an "
            "illegal instruction; use float32 or float16",
        )  # fmt: skip
    return _DTYPES[name]


@cache
def cpu_has_bfloat16() -> bool:
    """Try it in a process of its own: some processors announce it and then stop at an illegal instruction."""
    code = "import torch; torch.nn.Conv2d(16, 16, 3).bfloat16()(torch.ones(2, 16, 8, 8).bfloat16())"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


def device_name(device: torch.device) -> str:
    """Return the name of the hardware behind a device."""
    if device.type == "cpu":
        return processor()
    try:
        return str(torch.get_device_module(device.type).get_device_name(device))
    except (RuntimeError, AttributeError):
        return str(device)


def synchronize(device: torch.device) -> None:
    """Wait until a device has done all that it was asked for."""
    if device.type != "cpu":
        torch.get_device_module(device.type).synchronize()


def peak_memory(device: torch.device) -> int | None:
    """Return the most bytes that tensors have taken on an accelerator so far; None where nobody counts them."""
    try:
        return None if device.type == "cpu" else int(torch.accelerator.max_memory_allocated(device))
    except (RuntimeError, AttributeError, ValueError, NotImplementedError):
        return None


def room(device: torch.device, most: int) -> int:
    """Return how many float32 numbers may be held at once: at most `most`, and a quarter of the free memory."""
    if device.type == "cpu":
        return most
    try:
        free = torch.get_device_module(device.type).mem_get_info(device)[0]
    except (RuntimeError, AttributeError):
        return most
    return max(1, min(most, int(free) // 16))


def empty_cache(device: torch.device) -> None:
    """Give memory that PyTorch keeps for later back to the device."""
    if device.type != "cpu" and hasattr(torch.get_device_module(device.type), "empty_cache"):
        torch.get_device_module(device.type).empty_cache()
