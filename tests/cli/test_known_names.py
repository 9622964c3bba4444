"""A slip is answered at once: the names that options take are known without torch, and are those of the library."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import get_args

import pytest

from slimilar import criteria, models
from slimilar.cli import known_names
from slimilar.cli.plans import ENOUGH
from slimilar.data.cifar import CLASSES
from slimilar.deploy.runtimes import ENGINES
from slimilar.pipeline.analysis import Streams
from slimilar.reconstruction.methods import OPTIONS
from slimilar.similarity.linkage import Linkage
from slimilar.train import RECIPES
from slimilar.utils import dataset_names, devices

NETWORK = "class MyNetwork: ...\n"
# Every line: what is typed, and what the answer says.
SLIPS = {
    "prnue slimilar:demo": "Did you mean 'prune'?",
    "prune slimilar:demo --flop 0.5": "--flops",
    "prune slimilar:demo": "exactly one of --threshold",
    "prune slimilar:demo --flops 1.5": "a share of at most 1",
    "prune slimilar:demo --flops half": "must be a share such as 0.5",
    "prune slimilar:demo --flops 0.5 --round-to much": "must be a whole number",
    "prune slimilar:demo --latency 0.5 --runtime tpu": "--runtime must be one of pytorch",
    "prune slimilar:demo --flops 0.5 --residual iner": "--residual must be one of inner",
    "prune slimilar:demo --flops 0.5 --linkage ward": "--linkage must be one of average",
    "prune slimilar:demo --flops 0.5 --criterion spam": "did you mean span",
    "prune slimilar:demo --flops 0.5 --reconstruction some": "--reconstruction must be one of auto",
    "prune slimilar:demo --flops 0.5 --calibrate nowhere": "but there is no such folder",
    "prune slimilar:demo --flops 0.5 --dtype float8": "--dtype must be one of float32",
    "prune slimilar:demo --flops 0.5 -o net.py/x": "can be written to",
    "prune slimilar:demo --flops 0.5 --finetune 1": "pass --data",
    "prune resnet50 --flops 0.5": "a model must be given as torchvision:NAME",
    "prune net.py --flops 0.5": "did you mean net.py:MyNetwork",
    "prune weights.pt --flops 0.5": "path/file.py:MyNetwork --weights weights.pt",
    "analyze slimilar:vgg61": "did you mean vgg16",
    "analyze net.py:MyNetwrok": "did you mean MyNetwork",
    "analyze nowhere.py:MyNetwork": "must be a Python file",
    "analyze slimilar:vgg16 --weights none.pt": "there is no such file",
    "explore none.onnx": "must be an ONNX file",
    "inspect none.safetensors": "there is no such file",
    "export none.safetensors": "there is no such file",
    "export slimilar:demo -o small.tflite": "--out must end in .onnx",
    "evaluate slimilar:demo --data mnist": "data must be",
    "evaluate slimilar:demo --amp some": "--amp must be one of auto",
    "bench slimilar:demo --engine tpu": "--engine must be one of pytorch",
    "train slimilar:resnet20 --data demo --recipe quik": "did you mean quick",
    "finetune slimilar:demo": "--data must name the images",
    "compare slimilar:demo --criteria similarity,spam": "did you mean span",
    "run none.yaml": "none.yaml",
}
PROGRAM = """
import contextlib, io, json, os, shlex, sys
os.environ.pop("SLIMILAR_DATA", None)
sys.modules["torch"] = None  # importing it raises
from slimilar.cli import main
answers = {}
for line in json.load(sys.stdin):
    sys.argv = ["slimilar", *shlex.split(line)]
    said = io.StringIO()
    code = 0
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            main()
        except SystemExit as stop:
            code = stop.code
    answers[line] = [code, said.getvalue()]
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str]]:
    """The exit code of every line and what was said, in one process that cannot import torch."""
    folder = tmp_path_factory.mktemp("slips")
    (folder / "net.py").write_text(NETWORK)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], input=json.dumps(list(SLIPS)), capture_output=True, text=True, check=True,
        timeout=120, cwd=folder,
    )  # fmt: skip
    found: dict[str, tuple[int, str]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("line", SLIPS)
def test_a_slip_is_answered_without_torch(answers, line):
    code, said = answers[line]
    assert SLIPS[line] in " ".join(said.replace("│", " ").split())
    assert code in (1, 2)


def test_the_names_are_those_of_the_library():
    assert criteria.ENOUGH_IMAGES == ENOUGH
    assert set(known_names.RESIDUALS) == {name for kind in get_args(Streams) for name in get_args(kind)}
    assert get_args(Linkage) == known_names.LINKAGES
    assert known_names.RECONSTRUCTIONS == OPTIONS
    assert tuple(ENGINES) == known_names.RUNTIMES
    assert tuple(devices._DTYPES) == known_names.DTYPES
    assert tuple(RECIPES) == known_names.RECIPES
    assert criteria.available() == known_names.CRITERIA
    assert tuple(criteria._ALIASES) == known_names.FORMER_CRITERIA
    assert tuple(CLASSES) == dataset_names.CIFAR
    assert (*models.NAMES, *models.CHECKPOINTS, "demo") == known_names.NETWORKS


def test_a_python_file_may_enter_a_criterion_of_its_own():
    known_names.check_criterion("roughest", "net.py:MyNetwork")
