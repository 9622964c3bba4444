"""Commands on ONNX files, and each once in a process of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from PIL import Image
from typer.testing import CliRunner

from helpers.onnx_models import answers, classifier, model, saved, weights
from slimilar.cli import app

TALL, WIDE = 24, 40


def invoked(*words: str) -> dict:
    done = CliRunner().invoke(app, [*words, "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.fixture
def square(tmp_path) -> Path:
    return saved(classifier(), tmp_path / "square.onnx")


def channels_last(path: Path, channels: int = 3) -> Path:
    """Write a classifier of five classes for images of 24 x 40 pixels, channels last, as TensorFlow exports them."""
    node = helper.make_node
    made = model(
        [
            node("Transpose", ["image"], ["x"], perm=[0, 3, 1, 2]),
            node("Conv", ["x", "w1"], ["c"], "first", pads=[1, 1, 1, 1]),
            node("Relu", ["c"], ["r"]),
            node("Conv", ["r", "w2"], ["d"], "second", strides=[4, 4]),
            node("GlobalAveragePool", ["d"], ["p"]),
            node("Flatten", ["p"], ["y"]),
        ],
        {"w1": weights(12, channels, 3, 3), "w2": weights(5, 12, 3, 3, seed=1)},
        {"image": ["N", TALL, WIDE, channels]},
    )
    return saved(made, path)


@pytest.fixture
def photos(tmp_path) -> Path:
    """A folder of test images in five classes, all of the size that the model takes, each class in its own colour."""
    random = np.random.default_rng(0)
    for label in range(5):
        folder = tmp_path / "photos" / "test" / f"class{label}"
        folder.mkdir(parents=True)
        for i in range(4):
            pixels = random.integers(0, 255, (TALL, WIDE, 3)) * random.random(3)
            Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{i}.png")
    return tmp_path / "photos"


def expected_accuracy(file: Path, photos: Path, grey: bool = False) -> float:
    """Return the accuracy by ONNX Runtime on pixels from 0 to 1."""
    right = []
    for label in range(5):
        for path in sorted((photos / "test" / f"class{label}").iterdir()):
            image = np.asarray(Image.open(path).convert("L" if grey else "RGB"), np.float32) / 255
            (scores,) = answers(file, {"image": image.reshape(1, TALL, WIDE, -1)})
            right.append(scores.argmax() == label)
    return float(np.mean(right))


@pytest.mark.parametrize("channels", [3, 1])
def test_evaluate_channels_last_and_not_square(channels, photos, tmp_path):
    file = channels_last(tmp_path / "model.onnx", channels)
    told = invoked("evaluate", str(file), "--data", str(photos), "--normalise", "raw")
    (score,) = told.values()
    assert score["images"] == 20
    assert score["accuracy"] == pytest.approx(expected_accuracy(file, photos, channels == 1))


def test_evaluate_says_that_a_detector_is_no_classifier(photos, tmp_path):
    made = classifier()
    made.graph.output.append(helper.make_tensor_value_info("s", 1, None))
    file = saved(made, tmp_path / "two.onnx")
    done = CliRunner().invoke(app, ["evaluate", str(file), "--data", str(photos)])
    assert done.exit_code == 2
    assert "a classifier must return scores (images, classes)" in " ".join(done.output.split())


def test_calibrated_on_photos_not_square(photos, tmp_path):
    file, small = channels_last(tmp_path / "model.onnx"), tmp_path / "small.onnx"
    invoked("prune", str(file), "--calibrate", str(photos / "test"), "--flops", "0.6", "-o", str(small))
    (scores,) = answers(small, {"image": np.zeros((2, TALL, WIDE, 3), np.float32)})
    assert scores.shape == (2, 5)


def test_several_inputs_by_the_names_of_the_file(tmp_path):
    made = classifier()
    made.graph.node.append(helper.make_node("Add", ["y", "more"], ["z"]))
    made.graph.input.append(helper.make_tensor_value_info("more", 1, ["N", 5]))
    made.graph.output[0].name = "z"
    file, random = saved(made, tmp_path / "two.onnx"), np.random.default_rng(0)
    samples = {
        name: random.standard_normal((20, *s), np.float32)
        for name, s in {"x": (3, 16, 16), "more": (5,)}.items()
    }
    np.savez(tmp_path / "samples.npz", **samples)
    small = tmp_path / "small.onnx"
    words = ["--calibrate", str(tmp_path / "samples.npz"), "--flops", "0.6", "-o", str(small)]
    invoked("prune", str(file), *words)
    assert answers(small, samples)[0].shape == (20, 5)


def test_no_file_is_replaced_unless_asked_for(square, tmp_path):
    before, kept = square.read_bytes(), tmp_path / "kept.onnx"
    kept.write_bytes(b"precious")
    for out, force, said in (
        (square, [], "must not be the model itself"),
        (square, ["--force"], "must not be the model itself"),
        (kept, [], "kept.onnx is there already"),
    ):
        done = CliRunner().invoke(app, ["prune", str(square), "--flops", "0.6", "-o", str(out), *force])
        assert done.exit_code == 2
        assert said.replace(" ", "") in "".join(done.output.split())  # a long path is broken anywhere
    assert (square.read_bytes(), kept.read_bytes()) == (before, b"precious")
    invoked("prune", str(square), "--flops", "0.6", "-o", str(kept), "--force")
    assert answers(kept, {"x": np.zeros((1, 3, 16, 16), np.float32)})


def test_inspect_names_operators_that_cannot_be_read(tmp_path):
    made = classifier()
    made.graph.node.append(helper.make_node("Loop", ["", "", "y"], ["z"]))
    file = saved(made, tmp_path / "loop.onnx")
    done = CliRunner().invoke(app, ["inspect", str(file), "--json"])
    assert "Loop" in done.output


def test_similarity_by_measured_moments_is_told(square, photos, tmp_path):
    out = tmp_path / "small.onnx"
    words = [
        "--criterion",
        "similarity",
        "--calibrate",
        str(photos / "test"),
        "--flops",
        "0.7",
        "-o",
        str(out),
    ]
    done = CliRunner().invoke(app, ["prune", str(square), *words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    page = (tmp_path / "small.report.html").read_text()
    assert "measured on 20 images" in page
    assert "measured on 20 images" in " ".join(done.output.split())


def test_file_to_file_in_a_process_of_its_own(tmp_path, program):
    """The line of the guide, then every other command that takes a file, each as a user runs it."""
    random = np.random.default_rng(0)
    for i in range(20):
        folder = tmp_path / "photos" / "test" / f"class{i % 5}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 255, (20, 24, 3), np.uint8)).save(folder / f"{i}.png")
    made = classifier()
    saved(made, tmp_path / "model.onnx")

    def told(words: str) -> Any:
        done = program(*words.split(), "--json", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    cost = told("prune model.onnx --calibrate photos/ --flops 0.6 -o small.onnx")["cost"]
    assert cost["after"]["flops"] <= 0.6 * cost["before"]["flops"]
    assert (tmp_path / "small.report.html").is_file()
    after = onnx.load(tmp_path / "small.onnx")
    assert after.graph.input == made.graph.input
    (found,) = answers(tmp_path / "small.onnx", {"x": random.normal(size=(4, 3, 16, 16)).astype(np.float32)})
    assert found.shape == (4, 5)
    assert np.isfinite(found).all()

    assert told("inspect small.onnx")["inputs"] == {"x": [None, 3, 16, 16]}
    assert told("analyze small.onnx")["cost"]["flops"] == cost["after"]["flops"]
    told("explore small.onnx --criterion magnitude-l1 --no-open -o page.html")
    assert "first" in (tmp_path / "page.html").read_text()  # the name of an operator of the file
    times = told("bench model.onnx small.onnx --engine onnxruntime --seconds 0.1")
    assert "small.onnx" in json.dumps(times)
    (score,) = told("evaluate small.onnx --data photos").values()
    assert score["images"] == 20


def test_bad_input_is_one_sentence_on_the_command_line(tmp_path, program):
    (tmp_path / "bad.onnx").write_bytes(b"not onnx")
    done = program("prune", "bad.onnx", "--flops", "0.6", "-o", "small.onnx", cwd=tmp_path)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert "ONNX file" in " ".join(done.stderr.split())
    assert sorted(f.name for f in tmp_path.iterdir()) == ["bad.onnx"]
