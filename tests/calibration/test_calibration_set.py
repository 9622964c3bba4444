"""One calibration set from anything a user may pass."""

from __future__ import annotations

import pytest
import torch

from helpers.fitting import images, small_net
from slimilar.calibration.calibration_set import MAX_IMAGES, calibration_set
from slimilar.errors import InvalidInput


def test_tensors_loaders_and_iterators_give_the_same_set() -> None:
    x, y = images(20), torch.arange(20)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=5)
    for given in (loader, iter(loader), [(x, y)]):
        found = calibration_set(given, None, x[:1])
        assert (len(found), found.origin) == (20, "given")
        assert found.images is not None
        assert torch.equal(found.images, x)
        assert found.labels is not None
        assert torch.equal(found.labels, y)
    assert calibration_set(x, None, x[:1]).labels is None
    given = calibration_set(x, y, x[:1], seed=3)
    assert given.labels is not None
    assert torch.equal(given.labels, y)
    assert given.seed == 3


def test_batches_have_one_size_and_match_their_labels() -> None:
    x = images(300)
    found = calibration_set(x, torch.arange(300), x[:1])
    assert [len(b) for b in found.batches] == [128, 128]
    assert found.label_batches is not None
    for batch, labels in zip(found.batches, found.label_batches, strict=True):
        assert torch.equal(x[labels], batch)


def test_no_more_images_than_are_used_are_kept() -> None:
    tiny = torch.zeros(MAX_IMAGES + 9, 1, 2, 2)
    found = calibration_set(tiny, torch.arange(MAX_IMAGES + 9), tiny[:1])
    assert len(found) == MAX_IMAGES
    assert found.labels is not None
    assert len(found.labels) == MAX_IMAGES


def test_a_set_stays_itself_and_nothing_gives_an_empty_one() -> None:
    x = images(8)
    found = calibration_set(x, None, x[:1])
    again = calibration_set(found, None, x[:1], seed=5)
    assert again.images is found.images
    assert again.seed == 5
    empty = calibration_set(None, None, x[:1])
    assert not empty
    assert empty.batches == []
    assert empty.origin == "none"


def test_images_are_synthesised_from_the_model() -> None:
    x = images(2)
    with pytest.raises(InvalidInput, match="the model must be given"):
        calibration_set("synthesize", None, x[:1])
    with pytest.raises(InvalidInput, match='"synthesize"'):
        calibration_set("synthesise", None, x[:1], model=small_net())
