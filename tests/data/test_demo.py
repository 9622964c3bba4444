"""The shipped images."""

from __future__ import annotations

import pytest
import torch

from slimilar.data import (
    dataset,
    demo_images,
)
from slimilar.errors import InvalidInput


def test_demo_images_are_cifars():
    test, train = demo_images("test"), demo_images("train")
    assert test.labels.bincount().tolist() == [100] * 10
    assert len(train) == 256
    assert torch.equal(dataset("demo", "train").images, train.images)
    with pytest.raises(InvalidInput, match="must be 'test' or 'train'"):
        demo_images("validation")
