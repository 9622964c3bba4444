"""Batches adapt to the memory of a device."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import slimilar
from helpers.fitting import images, small_net
from helpers.pretend_device import State, pretend_device
from slimilar.calibration.synthesis import synthesize
from slimilar.data import Images
from slimilar.errors import SlimilarWarning
from slimilar.train import evaluate

pytestmark = pytest.mark.accelerator


@pytest.fixture
def small_device() -> Iterator[torch.device]:
    """A pretend device on which no tensor may be larger than the activations of a few images."""
    with pretend_device() as device:
        State.memory, State.refused = 24 * 10 * 12 * 12 * 4, 0
        try:
            yield device
        finally:
            State.memory = None


def test_pruning_halves_batches_until_they_fit(small_device: torch.device) -> None:
    net, example = small_net().to(small_device), images(1).to(small_device)
    with pytest.warns(SlimilarWarning, match="images do not fit into the memory"):
        result = slimilar.prune(net, example, flops=0.6, criterion="thinet", calibration=images(64))
    assert State.refused > 0
    assert result.error is not None
    assert {t.device.type for t in result.model.parameters()} == {small_device.type}


def test_synthesis_and_evaluation_halve_them_too(small_device: torch.device) -> None:
    net, example = small_net().to(small_device), images(1).to(small_device)
    with pytest.warns(SlimilarWarning, match="do not fit"):
        assert len(synthesize(net, example, count=64, steps=2)) == 64
    pixels = torch.zeros(64, 12, 12, 3, dtype=torch.uint8)
    with pytest.warns(SlimilarWarning, match="do not fit"):
        assert evaluate(net, Images(pixels, torch.zeros(64, dtype=torch.int64))).images == 64


def test_one_image_that_does_not_fit_is_an_error(small_device: torch.device) -> None:
    net, example = small_net().to(small_device), images(1).to(small_device)
    State.memory = 3500
    with pytest.warns(SlimilarWarning), pytest.raises(torch.OutOfMemoryError):
        synthesize(net, example, count=4, steps=1)
