"""How image files become inputs: against torchvision's transforms and timm's and torchvision's published settings."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from slimilar.data import Preprocessing, image_folder
from slimilar.data.preprocessing import checked_normalisation
from slimilar.errors import DataError, InvalidInput
from slimilar.utils.torchvision_compat import import_torchvision


def photo(width: int, height: int) -> Image.Image:
    drawn = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(drawn)


@pytest.mark.parametrize("size", [(40, 30), (30, 40), (20, 64)])
def test_resize_and_crop_equal_torchvision(size):
    transforms = import_torchvision("torchvision.transforms")
    theirs = transforms.Compose([transforms.Resize(18), transforms.CenterCrop(16)])(photo(*size))
    ours = Preprocessing.of(16, 18).prepared(photo(*size))
    assert np.array_equal(np.asarray(ours), np.asarray(theirs))


def test_resize_to_a_whole_size_equals_torchvision():
    transforms = import_torchvision("torchvision.transforms")
    theirs = transforms.Resize((16, 24))(photo(50, 40))
    assert np.array_equal(
        np.asarray(Preprocessing.of((16, 24), (16, 24)).prepared(photo(50, 40))), np.asarray(theirs)
    )


def test_an_image_of_the_input_size_is_taken_as_it_is_unless_asked_otherwise():
    given = photo(32, 32)
    assert np.array_equal(np.asarray(Preprocessing.of(32).prepared(given)), np.asarray(given))
    assert not np.array_equal(
        np.asarray(Preprocessing.of(32, always=True).prepared(given)), np.asarray(given)
    )


def test_a_crop_of_another_size_is_scaled_to_the_input():
    assert Preprocessing.of(8, 40, 32).prepared(photo(100, 80)).size == (8, 8)


def test_exif_rotation_is_honoured(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    (tmp_path / "a").mkdir()
    photo(32, 16).save(tmp_path / "a" / "turned.png", exif=exif)
    images, _ = image_folder(tmp_path, size=16).batch(torch.tensor([0]))
    upright = photo(32, 16).transpose(Image.Transpose.ROTATE_270)
    upright.save(tmp_path / "a" / "turned.png")
    assert torch.equal(images, image_folder(tmp_path, size=16).batch(torch.tensor([0]))[0])


def test_grey_images_have_one_channel(tmp_path):
    (tmp_path / "a").mkdir()
    photo(8, 8).save(tmp_path / "a" / "x.png")
    found = image_folder(tmp_path).prepared(Preprocessing.of(8, grey=True))
    assert found.batch(torch.tensor([0]))[0].shape == (1, 1, 8, 8)


def test_it_survives_being_written_down():
    for way in (
        Preprocessing.of((8, 9), (10, 12), 7, checked_normalisation([0.1], [0.2]), "bicubic", True, True),
    ):
        assert Preprocessing.from_dict(way.as_dict()) == way
    for bad in (
        {},
        {**Preprocessing.of(8).as_dict(), "std": [0.0]},
        {**Preprocessing.of(8).as_dict(), "size": 3},
    ):
        with pytest.raises(DataError, match="save the model again"):
            Preprocessing.from_dict(bad)


def test_wrong_values_are_refused():
    with pytest.raises(InvalidInput, match="from 1 to 16384 pixels"):
        Preprocessing.of(0)
    with pytest.raises(InvalidInput, match="interpolation must be one of nearest"):
        Preprocessing.of(8, interpolation="cubic")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="one number for each channel"):
        checked_normalisation([0.5, 0.5], [0.5])


def test_files_that_cannot_be_read_are_told_apart(folder):
    broken = folder / "1" / "torn.jpg"
    whole = next((folder / "1").glob("*.jpg")).read_bytes()
    broken.write_bytes(whole[: len(whole) // 2])
    found = image_folder(folder, size=8)
    sound, listed = found.readable()
    assert listed == (broken,)
    assert len(sound) == len(found) - 1
    assert sound.labels.tolist() == [
        label for file, label in zip(found.files, found.labels.tolist(), strict=True) if file != broken
    ]
    sound.batch(torch.arange(len(sound)))
