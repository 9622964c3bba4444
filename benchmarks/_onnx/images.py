"""Images for ONNX files: text is drawn, photos are those of an ImageNet folder, classes numbered from 0000."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont, ImageOps
from torch import Tensor

from slimilar.data.images import Normalisation

WORDS = [
    "invoice", "total", "amount", "date", "street", "paid", "order", "price", "customer", "phone", "city", "open",
    "the", "door", "river", "north", "light", "paper", "glass", "seven", "garden", "winter", "train", "station",
]  # fmt: skip
# Classes of ImageNet that usually show a person: gown, bow tie, sunglasses, suit, wig, and so on.
PEOPLE = (
    400, 451, 452, 457, 465, 501, 515, 559, 568, 578, 615, 617, 629, 643, 652, 655, 667, 678, 697, 735, 787, 793, 808,
    834, 836, 837, 841, 869, 890, 903, 906, 981, 982, 983,
)  # fmt: skip


def line(seed: int, height: int, width: int) -> Image.Image:
    """Return one line of text: one to three words and a number, dark on light or light on dark."""
    chance = random.Random(seed)
    ink, paper = chance.choice([(0, 255), (20, 235), (255, 30), (60, 210)])
    image = Image.new("RGB", (width, height), (paper,) * 3)
    font = ImageFont.load_default(chance.uniform(0.55, 0.8) * height)
    words = " ".join([*chance.choices(WORDS, k=chance.randint(1, 3)), str(chance.randint(0, 9999))])
    draw = ImageDraw.Draw(image)
    while draw.textlength(words, font) > width - 8 and " " in words:
        words = words.rpartition(" ")[0]
    draw.text((4, height // 2), words, (ink,) * 3, font, anchor="lm")
    return image


def turned(seed: int, height: int, width: int) -> Image.Image:
    """Return one line of text; every other one is upside down."""
    image = line(seed, height, width)
    return image.rotate(180) if random.Random(seed + 1_000_000).random() < 0.5 else image


def page(seed: int, height: int, width: int) -> Image.Image:
    """Return a page with several lines of text."""
    chance = random.Random(seed)
    image = Image.new("RGB", (width, height), (chance.randint(200, 255),) * 3)
    top = 8
    while top < height - 40:
        tall = chance.randint(16, 36)
        image.paste(line(seed * 100 + top, tall, chance.randint(width // 3, width - 20)), (8, top))
        top += tall + chance.randint(6, 24)
    return image


def turned_page(seed: int, height: int, width: int) -> Image.Image:
    """Return a page of text, turned by 0, 90, 180 or 270 degrees."""
    return page(seed, height, width).rotate(90 * random.Random(seed + 1_000_000).randrange(4))


def photos(folder: Path, classes: Sequence[int] = ()) -> list[Path]:
    """Return photos of all classes in turn, the first of each class first; or of some classes only."""
    places = [folder / f"{number:04d}" for number in classes] or sorted(folder.iterdir())
    files = [sorted(place.iterdir()) for place in places]
    return [found[turn] for turn in range(max(map(len, files))) for found in files if turn < len(found)]


def photo(file: Path, height: int, width: int) -> Image.Image:
    """Return the middle of a photo, at a size."""
    return ImageOps.fit(Image.open(file).convert("RGB"), (width, height), Image.Resampling.BILINEAR)


def stacked(images: Sequence[Image.Image], normalisation: Normalisation, channels_last: bool) -> Tensor:
    """Return normalised images as one tensor."""
    found = normalisation.apply(torch.from_numpy(np.stack([np.asarray(image) for image in images])))
    return (found.permute(0, 2, 3, 1) if channels_last else found).contiguous()
