"""The device of these tests: a real accelerator where there is one, else the pretend one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from helpers.pretend_device import pretend_device

REAL = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None


@pytest.fixture(params=["float64", "no float64"])
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    """A device other than the CPU, with float64 and without it."""
    float64 = request.param == "float64"
    if REAL is None:
        with pretend_device(float64) as found:
            yield found
    elif float64 == (REAL.type != "mps"):
        yield REAL
    else:
        pytest.skip(f"float64 is what {REAL} {'lacks' if float64 else 'has'}")


@pytest.fixture(params=[torch.float32, torch.float16], ids=["float32", "float16"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    """The precision of the model."""
    found: torch.dtype = request.param
    return found
