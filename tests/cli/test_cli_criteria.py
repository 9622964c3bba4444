"""What criteria need, from the command line: images, labels, a training phase; and the words that ask for them."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import slimilar
from helpers.commands import answer
from slimilar.cli import app
from slimilar.cli.error_handling import as_typed
from slimilar.criteria import available, facts
from slimilar.data import demo_images
from slimilar.errors import SlimilarError
from slimilar.models import demo_network
from slimilar.utils.sampling import evenly

DEMO = "slimilar:demo"
PLAIN = ["--flops", "0.5", "--substitute", "none"]
TRAINERS = [name for name in available() if facts(name).needs == "training"]
PYTHON = re.compile(r"\b\w+=(?!=)")  # an argument as Python writes it


def refused(*words: object, code: int = 2) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == code, result.output
    said = " ".join(result.stderr.split())
    assert said.count("slimilar: ") == 1
    assert not PYTHON.search(said), said
    return said


# --- labels ---------------------------------------------------------------------------------------------------------


def kept(found: dict[str, Any]) -> dict[str, list[int]]:
    return {name: layer["kept"] for name, layer in found["layers"].items()}


def by_hand(images: torch.Tensor, labels: torch.Tensor) -> dict[str, list[int]]:
    result = slimilar.prune(
        demo_network(), torch.zeros(1, 3, 32, 32), flops=0.5, criterion="taylor", substitute="none",
        calibration=images, labels=labels,
    )  # fmt: skip
    return {name: list(units) for name, units in result.kept.items()}


def test_the_labels_of_a_dataset_reach_the_criterion(tmp_path):
    words = ["--criterion", "taylor", "--calibrate", "demo", "--images", "16", *PLAIN]
    images = demo_images("train")
    images = images.at(torch.from_numpy(evenly(len(images), 16)))
    found = kept(answer("prune", DEMO, *words, "-o", tmp_path))
    assert found == by_hand(images.tensor(), images.labels)
    assert found != by_hand(images.tensor(), (images.labels + 1) % 10)


@pytest.fixture(scope="module")
def classes(tmp_path_factory) -> Path:
    """A folder with two images of each class of the demo, in folders whose order is that of the labels."""
    place, images = tmp_path_factory.mktemp("classes"), demo_images("train")
    for label in range(10):
        (place / f"class{label}").mkdir()
        for i in np.flatnonzero(images.labels == label)[:2]:
            Image.fromarray(images.images[int(i)].numpy()).save(place / f"class{label}" / f"{i:03}.png")
    return place


@pytest.mark.parametrize("inside", ["", "train"])
def test_folders_by_class_are_labels(classes, tmp_path, inside):
    place = classes
    if inside:  # a dataset's folder: its training images, never its test images
        place = tmp_path / "data"
        place.mkdir()
        (place / "train").symlink_to(classes)
        (place / "test" / "other").mkdir(parents=True)
        Image.new("RGB", (32, 32)).save(place / "test" / "other" / "black.png")
    words = ["--criterion", "taylor", "--calibrate", place, "--normalise", "raw", *PLAIN]
    found = kept(answer("prune", DEMO, *words, "-o", tmp_path / "out"))
    from slimilar.data import image_folder
    from slimilar.data.images import RAW

    images = image_folder(classes, size=32, normalisation=RAW)
    assert found == by_hand(*images.batch(torch.arange(len(images))))
    plain = ["--criterion", "similarity-images", "--calibrate", place, "--normalise", "raw", *PLAIN]
    assert answer("prune", DEMO, *plain, "-o", tmp_path / "plain")["criterion"] == "similarity-images"


def test_folders_that_are_no_classes_are_not_taken_for_labels(classes, tmp_path):
    words = ["prune", DEMO, "--criterion", "taylor", *PLAIN, "-o", tmp_path / "out"]
    few = tmp_path / "few"
    few.mkdir()
    for name in ("class0", "class1"):
        (few / name).symlink_to(classes / name)
    assert "for each of the 10 classes that the model distinguishes, but holds 2" in refused(
        *words, "--calibrate", few, code=1
    )
    assert "must hold one folder for each class" in refused(*words, "--calibrate", classes / "class0", code=1)
    assert not (tmp_path / "out").exists()


def test_a_file_may_have_labels(tmp_path):
    dataset = demo_images("train").first(12)
    images, labels = dataset.images.numpy(), dataset.labels.numpy()
    words = ["--criterion", "taylor", "--calibrate", tmp_path / "some.npz", "--normalise", "raw", *PLAIN]
    np.savez(tmp_path / "some.npz", images=images, labels=labels)
    found = kept(answer("prune", DEMO, *words, "-o", tmp_path / "out"))
    assert found == by_hand(torch.from_numpy(images).permute(0, 3, 1, 2) / 255, dataset.labels)
    np.savez(tmp_path / "some.npz", x=images)
    assert "must hold labels named y beside its x, but holds none" in refused("prune", DEMO, *words)
    np.savez(tmp_path / "some.npz", x=images, y=labels[:5])
    said = refused("prune", DEMO, *words)
    assert "a whole number in y for each image of x, but holds int64 of shape (5,) for 12 images" in said


# --- what is missing ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["analyze", "explore", "prune"])
@pytest.mark.parametrize("name", [name for name in available() if facts(name).needs != "nothing"])
def test_what_is_missing_is_asked_for_by_options(command, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    budget = ["--flops", "0.5"] if command == "prune" else []
    said = refused(command, DEMO, "--criterion", name, *budget)
    wanted = "slimilar train MODEL --for " + name if name in TRAINERS else "pass --calibrate with"
    assert wanted in said
    assert ("--trained" in said) == (name in TRAINERS)
    if facts(name).needs == "labels":
        assert "have no labels" in refused(
            command, DEMO, "--criterion", name, "--calibrate", "synthesize", *budget
        )
    assert not list(tmp_path.iterdir())


def test_the_real_program_asks_alike(program):
    done = program("prune", DEMO, "--criterion", "taylor", "--flops", "0.5")
    assert (done.returncode, done.stdout) == (2, "")
    assert " ".join(done.stderr.split()).startswith(
        'slimilar: criterion "taylor" follows the loss on labelled images, got none: pass --calibrate with'
    )


# --- training phases ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TRAINERS)
def test_a_network_is_trained_for_a_criterion_and_pruned_by_it(name, tmp_path):
    words = [
        "--data",
        "demo",
        "--recipe",
        "quick",
        "--epochs",
        "1",
        "--limit",
        "64",
        "-o",
        tmp_path / "trained",
    ]
    words += ["--flops", "0.5"] if facts(name).per_budget else []
    trained = answer("train", "slimilar:vgg16,width=0.125", "--for", name, *words)["model"]
    assert answer("inspect", trained)["trained for"] == [name]
    small = answer("prune", trained, "--criterion", name, "--flops", "0.5", "-o", tmp_path / "small")
    assert small["criterion"] == name
    assert small["cost"]["after"]["flops"] <= 0.5 * small["cost"]["before"]["flops"]
    if name == "soft":  # what leaves is what training set to zero
        weights = slimilar.load(trained).state_dict()
        for layer, found in small["layers"].items():
            size = weights[f"{layer}.weight"].flatten(1).norm(dim=1)
            assert sorted(set(range(len(size))) - set(found["kept"])) == size.eq(0).nonzero()[:, 0].tolist()


def test_the_next_command_is_told_and_the_phase_does_something(tmp_path):
    words = ["--data", "demo", "--recipe", "paper-vgg", "--epochs", "1", "--limit", "64"]
    shown = CliRunner().invoke(
        app,
        ["train", DEMO, "--for", "slimming", "--strength", "10", *words, "-o", str(tmp_path / "a")],
    )
    assert shown.exit_code == 0, shown.output
    model = tmp_path / "a" / "model.safetensors"
    said = "".join(shown.stdout.replace("\\\n", "").split())  # a long command goes on in the next line
    assert f"Nextslimilarprune{model}--criterionslimming--flops0.5" in said
    plain = answer("train", DEMO, *words, "-o", tmp_path / "b")["model"]
    sizes = [
        sum(
            float(t.abs().sum())
            for n, t in slimilar.load(file).state_dict().items()
            if ".bn" in n and "weight" in n
        )
        for file in (model, plain)
    ]
    assert 0 < sizes[0] < 0.9 * sizes[1]
    assert "trained for" not in answer("inspect", plain)


def test_weights_trained_elsewhere_are_taken_at_the_users_word(tmp_path):
    words = ["--criterion", "slimming", "--trained", *PLAIN, "-o", tmp_path]
    found = answer("prune", DEMO, *words)
    assert found["criterion"] == "slimming"
    assert "--trained" in (tmp_path / "report.html").read_text()  # the explorer offers the same line again


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["prune", DEMO, "--flops", "0.5", "--trained"], "--trained only applies to criteria with a training phase"),
        (["train", DEMO, "--data", "demo", "--for", "soft"], "needs the FLOPs budget of the pruning that follows"),
        (["train", DEMO, "--data", "demo", "--for", "span"], "--for must be one of slimming, structured"),
        (["train", DEMO, "--data", "demo", "--for", "slim"], "did you mean slimming"),
        (["train", DEMO, "--data", "demo", "--flops", "0.5"], "--flops needs --for CRITERION"),
        (
            ["train", DEMO, "--data", "demo", "--for", "soft", "--flops", "0.5", "--strength", "1"],
            "--strength only applies to criteria with a penalty",
        ),
    ],
)  # fmt: skip
def test_misuse_is_one_sentence(words, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert message in refused(*words)
    assert not list(tmp_path.iterdir())


def test_a_saved_network_remembers_its_phase(tmp_path):
    from slimilar.criteria.base import mark_trained, phases_of

    model = demo_network()
    mark_trained(model, "slimming")
    slimilar.save(model, tmp_path / "a.safetensors", source=DEMO)
    again = slimilar.load(tmp_path / "a.safetensors")
    assert phases_of(again) == {"slimming"}
    small = slimilar.prune(
        again, torch.zeros(1, 3, 32, 32), flops=0.5, criterion="slimming", substitute="none"
    )
    assert small.plan.criterion == "slimming"


# --- messages of the library on the command line ---------------------------------------------------------------------

ROOT = Path(slimilar.__file__).parent
# About Python files and model options, which are typed so on the command line too: slimilar:vgg16,width=0.5.
TYPED_ALIKE = {"deploy/model_names.py", "deploy/sources.py", "deploy/weights.py", "criteria/soft.py"}


def messages() -> dict[tuple[str, int], str]:
    """Return the text of every `raise` outside the command line, without the options it names."""
    found = {}
    for file in ROOT.rglob("*.py"):
        name = str(file.relative_to(ROOT))
        if name.startswith("cli/") or name in TYPED_ALIKE:
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Raise) and node.exc is not None:
                found[name, node.lineno] = "".join(texts(node.exc))
    return found


def texts(node: ast.AST) -> Iterator[str]:
    """Yield the texts in an expression, but not those inside of `Option(...)`."""
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "Option":
        return
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    for child in ast.iter_child_nodes(node):
        yield from texts(child)


def test_options_in_messages_are_marked_so_that_the_command_line_can_spell_them():
    found = messages()
    assert len(found) > 100
    assert not {place: text for place, text in found.items() if PYTHON.search(text)}


def test_options_are_printed_as_they_are_typed():
    assert "--min-channels must be" in refused_by_library(slimilar.prune, min_channels=-1, flops=0.5)
    assert "--residual must be" in refused_by_library(slimilar.prune, residual="outer", flops=0.5)
    assert "--ratio must be a number" in refused_by_library(slimilar.prune, ratio=2)


def refused_by_library(function: Callable[..., object], **options: object) -> str:
    with pytest.raises(SlimilarError) as raised:
        function(demo_network(), torch.zeros(1, 3, 32, 32), **options)
    return raised.value.message(as_typed)
