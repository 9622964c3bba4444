"""A folder of images by class."""

from __future__ import annotations

import pytest
from PIL import Image

from helpers.digits import digits


@pytest.fixture
def folder(tmp_path):
    """Real images, a few of each of three digits, as files of several kinds and shapes."""
    images = digits(0, 30)
    for i, (image, label) in enumerate(zip(images.images.numpy(), images.labels.tolist(), strict=True)):
        if label < 3:
            (tmp_path / str(label)).mkdir(exist_ok=True)
            scaled = Image.fromarray(image[:, :, 0]).resize((20 + 5 * label, 24))
            scaled.save(tmp_path / str(label) / f"{i}.{['png', 'jpg', 'bmp'][label]}")
    (tmp_path / "0" / "notes.txt").write_text("not a image")
    (tmp_path / ".hidden").mkdir()
    return tmp_path
