"""Folders of images against torchvision's reader, and folders that are wrong."""

from __future__ import annotations

import pytest
import torch

from slimilar.data import (
    image_folder,
    unlabelled,
)
from slimilar.errors import DataError
from slimilar.utils import torchvision_compat as _torchvision


def test_image_folder(folder):
    data = image_folder(folder, size=16)
    assert data.class_names == ("0", "1", "2")
    assert data.labels.bincount().tolist() == [3, 3, 3]
    images, labels = data.batch(torch.tensor([0, 4, 8]))
    assert images.shape == (3, 3, 16, 16)
    assert labels.tolist() == [0, 1, 2]


def test_image_folder_equals_torchvision(folder):
    """Labels, order and pixels as torchvision has them, for those who compare accuracies."""
    transforms = _torchvision.import_torchvision("torchvision.transforms")
    datasets = _torchvision.import_torchvision("torchvision.datasets")
    # torchvision takes every folder, also a hidden one that is empty
    (folder / ".hidden").rmdir()
    steps = [transforms.Resize(18), transforms.CenterCrop(16), transforms.ToTensor()]
    steps.append(transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    theirs = datasets.ImageFolder(str(folder), transforms.Compose(steps))
    ours = image_folder(folder, size=16, resize=18)
    images, labels = ours.batch(torch.arange(len(ours)))
    assert labels.tolist() == [label for _, label in theirs]
    torch.testing.assert_close(images, torch.stack([image for image, _ in theirs]), rtol=1e-5, atol=1e-5)


def test_random_part_depends_on_nothing_but_the_draws(folder):
    data = image_folder(folder, size=8)
    draws = torch.rand(2, 5)
    first, _ = data.batch(torch.tensor([0, 5]), draws)
    again, _ = data.batch(torch.tensor([5]), draws[1:])
    other, _ = data.batch(torch.tensor([5]), draws[:1])
    assert torch.equal(first[1:], again)
    assert not torch.equal(other, again)


def test_a_class_folder_missing_in_the_test_set(folder, tmp_path):
    names = image_folder(folder).class_names
    for file in (folder / "1").iterdir():
        file.unlink()
    with pytest.raises(DataError, match=r"1 must hold images, but holds none"):
        image_folder(folder)
    (folder / "1").rmdir()
    assert len(image_folder(folder).class_names) == 2
    with pytest.raises(
        DataError, match=r"same 3 class folders .* but '1' is missing \(1 missing, 0 unknown\)"
    ):
        image_folder(folder, classes=names)
    (folder / "7").mkdir()
    (folder / "1").mkdir()
    with pytest.raises(DataError, match="'7' is not one of them"):
        image_folder(folder, classes=names)


@pytest.mark.parametrize("content", [b"", b"no image at all", None])
def test_a_corrupt_image_is_named(folder, content):
    broken = next((folder / "1").iterdir())
    broken.write_bytes(broken.read_bytes()[:200] if content is None else content)
    data = image_folder(folder, size=8)
    index = torch.tensor([data.files.index(broken)])
    with pytest.raises(DataError, match=rf"{broken.name} must be a complete image.*replace or remove it"):
        data.batch(index)


def test_folders_that_are_not_there(tmp_path):
    with pytest.raises(DataError, match="must be a folder"):
        image_folder(tmp_path / "nowhere")
    with pytest.raises(DataError, match="must hold one folder for each class"):
        image_folder(tmp_path)
    with pytest.raises(DataError, match="must hold images"):
        unlabelled(tmp_path)


def test_unlabelled_takes_images_evenly(folder):
    images = unlabelled(folder, size=12, limit=3)
    assert images.tensor().shape == (3, 3, 12, 12)
    everything = image_folder(folder, size=12).batch(torch.arange(9))[0]
    assert torch.equal(images.tensor(), everything[[0, 4, 8]])
    assert len(unlabelled(folder, size=12)) == 9
