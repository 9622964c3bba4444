"""Devices and precisions by name."""

from __future__ import annotations

import pytest
import torch

from helpers.pretend_device import pretend_device
from slimilar.errors import InvalidInput
from slimilar.utils import devices
from slimilar.utils.devices import device_name, device_named, dtype_named, peak_memory, room
from slimilar.utils.precision import exact, exact_device, has_float64, widened


def test_auto_takes_an_accelerator_if_there_is_one() -> None:
    if not torch.accelerator.is_available():
        assert device_named("auto") == torch.device("cpu")
        with pretend_device() as device:
            assert device_named("auto").type == device.type
            assert device_named("pretend:0") == device
            with pytest.raises(InvalidInput, match="there is cpu and pretend:0"):
                device_named("pretend:1")


@pytest.mark.parametrize(
    ("name", "says"), [("gpu", "auto, cpu, cuda"), ("cuda:99", "one of this machine's, got 'cuda:99'")]
)
def test_other_names_are_refused(name: str, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        device_named(name)


def test_precisions_that_a_device_lacks_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    assert dtype_named("float16", cpu) is torch.float16
    with pytest.raises(InvalidInput, match="one of float32, float64"):
        dtype_named("half", cpu)
    with pretend_device(float64=False) as device, pytest.raises(InvalidInput, match="use float32"):
        dtype_named("float64", device)
    monkeypatch.setattr(devices, "cpu_has_bfloat16", lambda: False)
    with pytest.raises(InvalidInput, match="illegal instruction"):
        dtype_named("bfloat16", cpu)


@pytest.mark.parametrize("float64", [True, False])
def test_linear_algebra_is_float64_on_the_device_or_else_on_the_cpu(float64: bool) -> None:
    with pretend_device(float64) as device:
        x = torch.ones(3, device=device)
        assert has_float64(device) == float64
        assert exact_device(device).type == (device.type if float64 else "cpu")
        assert exact(x).dtype is torch.float64
        assert exact(x).device.type == exact_device(device).type


def test_half_precision_is_widened() -> None:
    given = {"a": torch.ones(2).half(), "b": torch.ones(2), "c": torch.ones(2, dtype=torch.int64)}
    assert [t.dtype for t in widened(given).values()] == [torch.float32, torch.float32, torch.int64]


def test_hardware_has_a_name_and_memory_a_bound() -> None:
    cpu = torch.device("cpu")
    assert device_name(cpu)
    assert peak_memory(cpu) is None
    assert room(cpu, 10) == 10
    with pretend_device() as device:
        assert device_name(device) == "Pretend 3000"
        assert room(device, 10) == 10
