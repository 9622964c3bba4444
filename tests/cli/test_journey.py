"""Your own network, start to finish: the real program, real files, every command."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from helpers.paths import DOCS
from helpers.program import Program
from helpers.scripts import script
from slimilar.cli import app
from slimilar.deploy.model_names import parse
from slimilar.deploy.sources import build

STAND_INS = script("stand_ins")
MORE = """

class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = (nn.Sequential(nn.Conv2d(c, 16, 3), nn.BatchNorm2d(16), nn.ReLU()) for c in (3, 1))
        self.head = nn.Conv2d(32, 4, 1)

    def forward(self, image, depth):
        return self.head(torch.cat([self.left(image), self.right(depth)], 1)).mean((2, 3))


class Dense(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 4, 1))


class WithoutNorms(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
                         nn.Flatten(), nn.Linear(8, 2))
"""
MINE = ["net.py:MyNetwork", "--weights", "wrapped.pt", "--input", "3x32x32"]
pytestmark = pytest.mark.timeout(900)  # many processes, each of which imports torch
PLAIN = ["--mean", "0.5,0.5,0.5", "--std", "0.25,0.25,0.25"]


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """A folder with net.py, weights in three wrappings, and photos: two classes, one file that cannot be read."""
    folder = tmp_path_factory.mktemp("home")
    state = STAND_INS.write_network(folder, MORE).state_dict()
    save_file(state, folder / "plain.safetensors")
    torch.save({"epoch": 3, "state_dict": state}, folder / "wrapped.pt")
    torch.save({f"module.{name}": tensor for name, tensor in state.items()}, folder / "parallel.pth")
    STAND_INS.write_photos(folder / "photos")
    (folder / "photos" / "test" / "dog" / "torn.jpg").write_bytes(b"\xff\xd8\xff not a photo")
    return folder


def environment() -> dict[str, str]:
    """Return the variables of a wide terminal."""
    known = {name: value for name, value in os.environ.items() if name != "SLIMILAR_DATA"}
    return {**known, "COLUMNS": "200", "OMP_NUM_THREADS": "1"}


class Shell:
    """The user's shell: commands in the user's folder, each in a process of its own."""

    def __init__(self, home: Path, program: Program) -> None:
        self.home, self.program = home, program

    def __call__(self, *words: str, code: int = 0) -> str:
        """Run the program and return what it printed on both streams, as one line."""
        done = self.program(*words, cwd=self.home)
        assert done.returncode == code, done.stdout + done.stderr
        return " ".join((done.stderr + done.stdout).split())


@pytest.fixture(scope="module")
def slimilar(home, program) -> Shell:
    """The program in the user's folder."""
    return Shell(home, program)


@pytest.fixture(scope="module")
def small(home) -> str:
    """What `prune` said, started as users start it; its results are in small/."""
    words = [
        "prune",
        *MINE,
        "--flops",
        "0.6",
        *PLAIN,
        "--calibrate",
        "photos",
        "--data",
        "photos",
        "-o",
        "small",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "slimilar", *words], capture_output=True, text=True, timeout=600, cwd=home,
        env=environment(),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return " ".join((done.stderr + done.stdout).split())


def test_prune_says_what_it_does_and_what_comes_next(home, small):
    assert "32x32 images as they are; normalised with mean 0.5 0.5 0.5, std 0.25 0.25 0.25" in small
    assert "1 of 41 image files cannot be read and are skipped: photos/test/dog/torn.jpg" in small
    count = len(list((home / "photos" / "train").rglob("*.png")))
    assert f"calibrating on {count} images of photos; pass 128 or more to keep more accuracy" in small
    assert re.search(r"accuracy [0-9.]+ % [0-9.]+ % [+-][0-9.]+ points", small)
    assert f"reconstruction least squares on {count} images" in small
    assert sorted(file.name for file in (home / "small").iterdir()) == [
        "model.safetensors", "plan.json", "recipe.yaml", "report.html"
    ]  # fmt: skip


def test_the_commands_that_come_next_work_as_they_are_printed(slimilar, home, small):
    commands = re.findall(
        r"slimilar (?:evaluate|bench|finetune|export) .*?(?= slimilar |$)", small[small.index("Next") :]
    )
    assert len(commands) == 4
    said = []
    for command in commands:
        words = shlex.split(command)[1:]
        words += {"bench": ["--seconds", "0.1"], "finetune": ["--limit", "8"]}.get(words[0], [])
        said.append(slimilar(*words))
    assert (home / "small.onnx").is_file()
    assert (
        "Next slimilar export finetuned/model.safetensors --base net.py:MyNetwork -o finetuned.onnx"
        in said[2]
    )
    tuned = slimilar(
        "evaluate", "finetuned/model.safetensors", "--base", "net.py:MyNetwork", "--data", "photos"
    )
    assert "mean 0.5 0.5 0.5, std 0.25 0.25 0.25" in tuned  # as it was pruned and fine-tuned


def test_a_file_may_be_named_instead_of_a_folder(slimilar, home):
    said = slimilar("prune", *MINE, "--flops", "0.6", "-o", "one.safetensors")
    assert "reconstruction gaussian (data-free)" in said
    assert sorted(file.name for file in home.glob("one.*")) == [
        "one.plan.json", "one.recipe.yaml", "one.report.html", "one.safetensors"
    ]  # fmt: skip
    assert "reconstruction gaussian (data-free)" in slimilar("inspect", "one.safetensors")
    assert "the model is identical" in slimilar("run", "one.recipe.yaml", "-o", "other.safetensors")


def test_what_scores_no_classes_is_not_to_be_evaluated(slimilar):
    said = slimilar("prune", "net.py:Dense", "--input", "3x16x16", "--flops", "0.6", "--round-to", "1",
                    "--criterion", "magnitude-l1", "-o", "dense")  # fmt: skip
    following = re.findall(r"slimilar (\w+) ", said[said.index("Next") :])
    assert following == ["bench", "export"]


def commands_of(page: str) -> list[list[str]]:
    """Return the commands of a page of the documentation, as words after `slimilar`."""
    blocks = re.findall(r"```sh\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [shlex.split(line)[1:] for line in lines if line.startswith("slimilar ")]


def run_page(page: str) -> None:
    """Run the commands of a page in order, in this process."""
    for words in commands_of(page):
        more = {"finetune": ["--limit", "8"], "bench": ["--seconds", "0.1"]}.get(words[0], [])
        done = CliRunner().invoke(app, [*words, *more])
        assert done.exit_code == 0, f"{words}\n{done.output}"


def test_the_guide_runs_as_it_stands(home, tmp_path, monkeypatch):
    shutil.copytree(home / "photos", tmp_path / "photos")
    shutil.copy(home / "net.py", tmp_path)
    shutil.copy(home / "wrapped.pt", tmp_path / "weights.pt")
    monkeypatch.chdir(tmp_path)
    run_page("own-network.md")
    assert (tmp_path / "small.onnx").is_file()
    assert (tmp_path / "again" / "model.safetensors").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("page", ["index.md", "export.md", "latency.md"])
def test_commands_of_other_pages_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_page(page)


def test_accuracy_is_that_of_the_pixels_as_they_are(slimilar, home):
    said = json.loads(
        slimilar("evaluate", *MINE, *PLAIN, "--data", "photos", "--json")
    )["net.py:MyNetwork"]  # fmt: skip
    model = build(parse(f"{home}/net.py:MyNetwork"))
    model.load_state_dict(torch.load(home / "wrapped.pt")["state_dict"])
    right, count = 0, 0
    for label, name in enumerate(("cat", "dog")):
        pixels = np.stack(
            [np.asarray(Image.open(f)) for f in sorted((home / "photos/test" / name).glob("*.png"))]
        )
        images = (torch.from_numpy(pixels).permute(0, 3, 1, 2) / 255 - 0.5) / 0.25
        with torch.no_grad():
            right += int((model.eval()(images).argmax(1) == label).sum())
        count += len(images)
    assert said["images"] == count
    assert said["accuracy"] == pytest.approx(right / count)


def test_photos_that_a_camera_turned_are_turned_back(slimilar, home):
    """Stored on their side with an EXIF orientation, they give what the upright ones give."""
    turn = Image.Exif()
    turn[0x0112] = 6  # to be shown turned by 90 degrees clockwise
    for file in sorted((home / "photos" / "test").rglob("*.png")):
        place = home / "turned" / file.relative_to(home / "photos")
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.open(file).transpose(Image.Transpose.ROTATE_90).save(place, exif=turn)
    upright, turned = (
        json.loads(slimilar("evaluate", *MINE, *PLAIN, "--data", data, "--json"))["net.py:MyNetwork"]
        for data in ("photos", "turned")
    )
    assert turned == upright


def test_a_normalisation_that_nobody_gave_is_called_a_guess(slimilar):
    said = slimilar("evaluate", *MINE, "--data", "photos")
    assert "std 0.229 0.224 0.225, a guess: --mean and --std take those of your training" in said


def test_a_narrow_terminal_breaks_neither_names_nor_commands(home, program):
    done = program("analyze", *MINE, cwd=home, columns=60)
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 60
    assert "blocks.0.conv1" in done.stdout
    command = shlex.split(done.stdout.partition("Next\n")[2].replace("\\\n", " "))  # as a shell joins lines
    assert command == ["slimilar", "prune", *MINE, "--flops", "0.5"]


@pytest.mark.parametrize("words", [["criteria"], ["evaluate", *MINE, *PLAIN, "--data", "photos"]])
def test_a_narrow_terminal_cuts_nothing_off(home, program, words):
    """A table that does not fit is written line by line: every word of it is there, at 40 columns as at 200."""
    wide, narrow = (program(*words, cwd=home, columns=columns).stdout for columns in (200, 40))
    assert max(map(len, narrow.splitlines())) <= 40
    assert set(re.findall(r"[\w.:%-]+", wide)) <= set(re.findall(r"[\w.:%-]+", narrow))


@pytest.mark.skipif(os.name == "nt", reason="signals")
def test_fine_tuning_that_was_stopped_goes_on(home, small):
    words = [
        "finetune",
        "small/model.safetensors",
        "--base",
        "net.py:MyNetwork",
        "--data",
        "photos",
        "--limit",
        "8",
    ]
    with subprocess.Popen(
        [sys.executable, "-m", "slimilar", *words, "--epochs", "400", "-o", "stopped"], stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, cwd=home, env=environment(),
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as running:  # fmt: skip
        assert running.stderr is not None
        told = next((line for line in running.stderr if "epoch 2/400" in line), "")
        assert told, "the second epoch must be shown"
        running.send_signal(signal.SIGINT)
        rest = running.stderr.read()
        assert running.wait(timeout=60) == 130
    assert "interrupted; to continue, run the same command with --resume" in " ".join(rest.split())
    assert not (home / "stopped" / "model.safetensors").exists()


def test_a_network_with_two_inputs_is_calibrated_from_a_file(slimilar, home):
    arrays = {f"input_{i}": np.zeros((24, c, 16, 16), np.float32) for i, c in enumerate((3, 1))}
    rng = np.random.default_rng(0)
    np.savez(
        home / "pairs.npz", **{name: rng.normal(size=a.shape).astype("f4") for name, a in arrays.items()}
    )
    said = slimilar("prune", "net.py:Pair", "--input", "3x16x16", "--input", "1x16x16", "--flops", "0.6",
                    "--round-to", "1", "--calibrate", "pairs.npz", "-o", "pair")  # fmt: skip
    assert "calibrating on 24 images of pairs.npz; pass 128 or more" in said
    assert (home / "pair" / "model.safetensors").is_file()


def test_five_images_are_too_few_and_not_used(slimilar, home):
    (home / "five").mkdir()
    for file in sorted((home / "photos/train/dog").glob("*.png"))[:5]:
        shutil.copy(file, home / "five")
    said = slimilar("prune", *MINE, "--flops", "0.6", *PLAIN, "--calibrate", "five", "-o", "from-five")
    assert "5 calibration images are too few for held-out measurements and are not used" in said
    slimilar("prune", *MINE, "--flops", "0.6", "-o", "from-none")
    five, none = (load_file(home / name / "model.safetensors") for name in ("from-five", "from-none"))
    assert all(torch.equal(five[name], tensor) for name, tensor in none.items())


def test_a_recipe_gives_the_same_model_again(slimilar, home, small):
    said = slimilar("run", "small/recipe.yaml", "-o", "again")
    assert "the model is identical to the one that was written with the recipe" in said
    assert (home / "again/model.safetensors").read_bytes() == (home / "small/model.safetensors").read_bytes()
    (home / "wrong.yaml").write_text("model: net.py:MyNetwork\noptions: {flop: 0.5}\n")
    assert "did you mean flops" in slimilar("run", "wrong.yaml", code=2)


@pytest.mark.parametrize("weights", ["plain.safetensors", "parallel.pth"])
def test_weights_in_other_wrappings_and_a_dry_run(slimilar, home, weights):
    said = slimilar("--verbose", "--log", "run.log", "prune", MINE[0], "--weights", weights, "--input", "3x32x32",
                    "--ratio", "0.5", "--dry-run", "-o", "dry")  # fmt: skip
    assert "Nothing was written" in said
    assert "Tracing the model" in said
    assert not (home / "dry").exists()
    assert "Nothing was written" in (home / "run.log").read_text()


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("evaluate small/model.safetensors --data photos", 1, "if you ask for it: pass --base net.py:MyNetwork"),
        ("prune net.py:MyNetwork --weights wrapped.pt --input 3x32x32 --flops 0.6 -o small", 2, "pass --force"),
        ("prune net.py:MyNetwork --weights wrapped.pt --input 3x32x32 --flops 1.5 -o x", 2, "a share of at most 1"),
        ("prune net.py:MyNetwork --weights wrapped.pt --input 3x32x32 --flops 100G -o x", 2, "nothing would be pruned"),
        ("prune net.py:MyNetwork --weights wrapped.pt --input 3x32x32 --flops 0.5 -o net.py/x", 2, "can be written to"),
        ("prune net.py:MyNetwork --weights wrapped.pt --input 3x32x32 --flops 0.5 -o small.pt", 2,
         "pass a name without .pt, such as small"),
        ("analyze net.py --input 3x32x32", 2, "did you mean net.py:Block, net.py:MyNetwork, net.py:Pair,"),
        ("analyze wrapped.pt", 2, "path/file.py:MyNetwork --weights wrapped.pt"),
        ("analyze net.py:MyNetwork --weights photos --input 3x32x32", 1, "but is a folder"),
        ("inspect small", 1, "small/model.safetensors"),
        ("bench small", 2, "did you mean small/model.safetensors?"),
        ("analyze resnet50", 2, "did you mean torchvision:resnet50 or timm:resnet50?"),
        ("analyze net.py:Block --input 3x32x32", 2, "but needs channels; write a function that returns Block(...)"),
        ("analyze net.py:torch --input 3x32x32", 2, "must be a class or a function that returns the model, got module"),
        ("analyze net.py:MyNetwork --input 1x32x32", 1, "(pass --input SHAPE)"),
        ("analyze net.py:MyNetwork --flops 0.5", 2, "of analyze; it is one of prune, train"),
        ("analyze net.py:MyNetwork --weights small/model.safetensors --input 3x32x32", 2,
         "it is a pruned model: name the file itself as the model"),
        ("inspect wrapped.pt", 1, "a .safetensors file, but has another suffix"),
        ("run small/recipe.yaml", 2, "small already holds model.safetensors"),
        ("run none.yaml", 1, "but there is no such file; check the path"),
        ("run small/plan.json", 1, "name the recipe.yaml"),
        ("evaluate net.py:MyNetwork --weights wrapped.pt --input 3x32x32", 1,
         "with the classes of the model, 0 to 1, but has label 9; pass --data"),
        ("evaluate slimilar:demo --data photos", 1, "each of the 10 classes that the model distinguishes, but holds 2"),
        ("evaluate net.py:MyNetwork --weights wrapped.pt --input 3x32x32 --data photos/test", 1,
         "name the folder that holds test: photos"),
        ("evaluate net.py:MyNetwork --weights wrapped.pt --input 3x32x32 --data photos --mean 127 --std 64", 2,
         "divide both by 255"),
        ("finetune small/model.safetensors --base net.py:MyNetwork --data photos --lr -1", 2, "--lr must be"),
        ("evaluate small/model.safetensors --base net.py:MyNetwork --weights none.pt --data photos", 1, "no such file"),
        ("finetune small/model.safetensors --base net.py:MyNetwork", 2, "--data must name the images to train on"),
        ("finetune small/model.safetensors --base net.py:MyNetwork --data photos --teacher net.py:MyNetwork", 2,
         "--teacher must be a trained model"),
        ("prune net.py:MyNetwork --weights wrapped.pt --input 3x32x32 --flops 0.5 --finetune 1 -o x", 2, "pass --data"),
    ],
)  # fmt: skip
def test_mistakes_on_the_way_say_what_to_do(slimilar, small, words, code, message):
    assert message in slimilar(*words.split(), code=code)


def test_a_recipe_that_cannot_be_run_again_does_not_say_that_it_was(slimilar, small):
    assert "identical" not in slimilar("run", "small/recipe.yaml", code=2)


def test_labels_are_said_to_follow_the_folders(slimilar):
    said = slimilar("evaluate", *MINE, *PLAIN, "--data", "photos")
    assert "test images: 40 of photos, labelled from 0 in the order of the folders cat, dog; 32x32" in said
    assert "top-5" not in said  # of two classes


def test_a_teacher_with_its_weights_and_fine_tuning_within_prune(slimilar, small):
    base = ["--base", "net.py:MyNetwork", "--data", "photos", "--epochs", "1", "--limit", "8"]
    taught = slimilar("finetune", "small/model.safetensors", *base, "--teacher", "net.py:MyNetwork",
                      "--teacher-weights", "wrapped.pt", "-o", "taught")  # fmt: skip
    assert "test accuracy" in taught
    once_more = slimilar("finetune", "small/model.safetensors", *base, "-o", "taught", code=1)
    assert "taught already holds a run" in once_more
    assert "train images" not in once_more  # found before any image is read
    anew = slimilar("finetune", "small/model.safetensors", *base, "--resume", "-o", "untaught")
    assert "untaught holds no run to resume; training starts from the beginning" in anew
    slimilar(
        "finetune",
        "small/model.safetensors",
        *base,
        "--teacher",
        "taught/model.safetensors",
        "-o",
        "twice",
    )
    tuned = slimilar("prune", *MINE, "--flops", "0.6", "--data", "photos", "--finetune", "1", "-o", "tuned")
    assert "after fine-tuning" in tuned


def test_the_other_commands(slimilar, home, small):
    assert "Next slimilar prune net.py:MyNetwork" in slimilar("analyze", *MINE)
    slimilar("explore", *MINE, "--no-open", "-o", "explore.html")
    assert "complete and unmodified" in slimilar("inspect", "small/model.safetensors")
    done = subprocess.run(
        f"{shlex.quote(sys.executable)} -m slimilar analyze {shlex.join(MINE)} | head -n 1; echo ${{PIPESTATUS[0]}}",
        shell=True, executable="/bin/bash", capture_output=True, text=True, timeout=600, cwd=home,
    )  # fmt: skip
    assert done.stdout.endswith("0\n")
    assert "Traceback" not in done.stderr
