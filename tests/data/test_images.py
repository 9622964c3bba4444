"""Images in memory: augmentation against a loop over single images, normalisation, wrong shapes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.digits import digits
from slimilar.data import (
    Images,
    Normalisation,
)
from slimilar.data.images import crop_and_flip
from slimilar.errors import DataError


def cropped_one_by_one(images, draws, padding, flip):
    """The same as crop_and_flip, as one would write it for a single image."""
    result = []
    for image, (down, right, mirror, *_) in zip(images.numpy(), draws.tolist(), strict=True):
        height, width, _ = image.shape
        padded = np.pad(image, ((padding, padding), (padding, padding), (0, 0)))
        top, left = int(down * (2 * padding + 1)), int(right * (2 * padding + 1))
        part = padded[top : top + height, left : left + width]
        if flip and mirror >= 0.5:
            # The window is flipped in place: its columns are read from right to left.
            part = part[:, ::-1]
        result.append(part)
    return torch.from_numpy(np.stack(result))


@given(
    count=st.integers(1, 5), height=st.integers(1, 9), width=st.integers(1, 9),
    channels=st.sampled_from([1, 3]), padding=st.integers(0, 4), flip=st.booleans(),
    seed=st.integers(0, 2**16),
)  # fmt: skip
def test_crop_and_flip_equals_one_by_one(count, height, width, channels, padding, flip, seed):
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (count, height, width, channels), dtype=torch.uint8, generator=generator)
    draws = torch.rand(count, 5, generator=generator)
    expected = cropped_one_by_one(images, draws, padding, flip)
    assert torch.equal(crop_and_flip(images, draws, padding, flip), expected)


def test_crop_reaches_every_shift_and_both_flips():
    draws = torch.rand(20_000, 5)
    image = torch.arange(1, 5, dtype=torch.uint8).view(1, 2, 2, 1).expand(20_000, 2, 2, 1)
    found = crop_and_flip(image, draws, 1).view(-1, 4).unique(dim=0)
    assert len(found) == 18  # 3 x 3 shifts, each flipped or not; all of them differ here


def test_normalisation():
    images = torch.randint(0, 256, (4, 5, 6, 3), dtype=torch.uint8)
    mean, std = (0.1, 0.2, 0.3), (0.4, 0.5, 0.6)
    expected = (images.permute(0, 3, 1, 2).double() / 255 - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(
        std
    ).view(3, 1, 1)
    got = Normalisation(mean, std).apply(images)
    torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=1e-6)
    assert got.is_contiguous(memory_format=torch.channels_last)


def test_images_without_draws_are_untouched():
    dataset = digits(0, 10)
    images, labels = dataset.batch(torch.tensor([3, 7]))
    assert torch.equal(images, dataset.tensor()[[3, 7]])
    assert labels.tolist() == [3, 7]
    assert len(dataset.first(4)) == 4


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (torch.zeros(2, 3, 4, 4), torch.zeros(2), "must be uint8"),
        (torch.zeros(2, 4, 4, dtype=torch.uint8), torch.zeros(2), r"shape \(2, 4, 4\)"),
        (torch.zeros(2, 4, 4, 3, dtype=torch.uint8), torch.zeros(3), "one label for each image"),
    ],
)
def test_wrong_images(images, labels, message):
    with pytest.raises(DataError, match=message):
        Images(images, labels)
