"""Models with several inputs are calibrated from tuples: in Python and on the command line."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset
from typer.testing import CliRunner

import slimilar
from slimilar.calibration.calibration_set import calibration_set
from slimilar.calibration.several_inputs import as_example, packed, unpacked
from slimilar.cli import app
from slimilar.criteria import available, facts
from slimilar.errors import InvalidInput

CODE = '''
import torch
from torch import nn

class Pair(nn.Module):
    """Two images of different sizes and a vector."""

    def __init__(self):
        super().__init__()
        self.left = nn.Sequential(nn.Conv2d(3, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU())
        self.right = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU())
        self.both = nn.Sequential(nn.Conv2d(24, 16, 3), nn.BatchNorm2d(16), nn.ReLU())
        self.head = nn.Linear(16 + 5, 4)

    def forward(self, left, right, facts):
        x = torch.cat([self.left(left), nn.functional.interpolate(self.right(right), scale_factor=2)], 1)
        return self.head(torch.cat([self.both(x).mean((2, 3)), facts], 1))
'''
names: dict[str, type[nn.Module]] = {}
exec(CODE, names)


@pytest.fixture(scope="module")
def pair() -> nn.Module:
    torch.manual_seed(0)
    model = names["Pair"]()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.weight, 1, 0.3)
            nn.init.normal_(module.bias, 0, 0.3)
    return model.eval()


@pytest.fixture(scope="module")
def inputs() -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(1)
    shapes = (48, 3, 8, 8), (48, 1, 4, 4), (48, 5)
    return tuple(torch.randn(shape, generator=generator) for shape in shapes)


def one(inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(t[:1] for t in inputs)


def test_packing_is_undone(inputs):
    rows = packed(inputs)
    assert rows.shape == (48, 3 * 64 + 16 + 5)
    back = unpacked(rows, [(3, 8, 8), (1, 4, 4), (5,)])
    assert all(map(torch.equal, back, inputs))
    again = as_example(rows[:2], {"left": inputs[0], "right": inputs[1], "facts": inputs[2].double()})
    assert again["facts"].dtype == torch.float64
    assert torch.equal(again["right"], inputs[1][:2])


class Samples(Dataset):
    """A dataset of tuples, sample by sample."""

    def __init__(self, inputs):
        self.inputs = inputs

    def __len__(self):
        return len(self.inputs[0])

    def __getitem__(self, i):
        return tuple(t[i] for t in self.inputs)


def forms(inputs):
    labels = torch.arange(48) % 4
    cut = list(zip(*(t.split(16) for t in inputs), strict=True))
    return {
        "tuple": inputs,
        "batches": cut,
        "generator": iter(cut),
        "dataset": Samples(inputs),
        "loader": DataLoader(TensorDataset(*inputs), batch_size=7),
        "labels at the end": [(*batch, part) for batch, part in zip(cut, labels.split(16), strict=True)],
        "labels beside": [(batch, part) for batch, part in zip(cut, labels.split(16), strict=True)],
        "dicts": [dict(zip(("facts", "right", "left"), batch[::-1], strict=True)) for batch in cut],
    }


@pytest.mark.parametrize("form", ["tuple", "batches", "generator", "dataset", "loader", "labels at the end",
                                  "labels beside", "dicts"])  # fmt: skip
def test_every_form_gives_the_same_samples(form, inputs):
    example = one(inputs)
    if form == "dicts":
        example = dict(zip(("left", "right", "facts"), example, strict=True))
    found = calibration_set(forms(inputs)[form], None, example)
    assert torch.equal(found.images, packed(inputs))
    assert (found.labels is not None) == form.startswith("labels")


@pytest.mark.parametrize(
    "name", [n for n in available() if facts(n).needs in ("nothing", "images", "labels")]
)
def test_every_criterion_and_the_fit_take_several_inputs(name, pair, inputs):
    labels = torch.arange(48) % 4
    result = slimilar.prune(pair, one(inputs), flops=0.7, criterion=name, calibration=[(inputs, labels)])
    assert result.cut.flops <= 0.7 * result.cut.before.flops
    assert result.model(*inputs).shape == (48, 4)


def test_calibration_keeps_the_outputs_closer(pair, inputs):
    with torch.no_grad():
        wanted = pair(*inputs)
        found = {
            given is not None: slimilar.prune(
                pair, one(inputs), flops=0.7, calibration=given, reconstruction="none" if given is None else "auto"
            ).model(*inputs)
            for given in (None, inputs)
        }  # fmt: skip
    errors = {fitted: float((out - wanted).square().mean()) for fitted, out in found.items()}
    assert errors[True] < 0.5 * errors[False]


def test_statistics_are_estimated_anew(pair, inputs):
    found = slimilar.recalibrate(pair, one(inputs), inputs)
    seen = pair.left[0](inputs[0])
    assert torch.allclose(found.left[1].running_mean, seen.mean((0, 2, 3)), atol=1e-5)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (lambda x: x[0], "must be a tuple of 3 tensors, .* got Tensor"),
        (lambda x: [(x[0], x[1])], "must hold tensors .* one for each input"),
        (lambda x: [(x[0], x[2], x[1])], "must hold tensors"),
        (lambda x: [(x[0], x[1], x[2][:5])], "must hold tensors"),
        (lambda x: [(x[0], x[1], x[2].long())], "all floating point"),
    ],
)
def test_what_does_not_fit_gets_one_clear_sentence(given, says, pair, inputs):
    with pytest.raises(InvalidInput, match=says):
        slimilar.prune(pair, one(inputs), flops=0.8, calibration=given(inputs))


@pytest.mark.parametrize("keys", [("left", "right", "facts"), ("input_0", "input_1", "input_2")])
def test_the_command_line_reads_an_array_for_each_input(keys, pair, inputs, tmp_path):
    (tmp_path / "net.py").write_text(CODE)
    torch.save(pair.state_dict(), tmp_path / "w.pt")
    np.savez(tmp_path / "samples.npz", **dict(zip(keys, (t.numpy() for t in inputs), strict=True)))
    words = f"net.py:Pair --weights {tmp_path}/w.pt --input 3x8x8 --input 1x4x4 --input 5 --flops 0.7".split()
    words += ["--calibrate", f"{tmp_path}/samples.npz", "-o", f"{tmp_path}/out"]
    done = CliRunner().invoke(app, ["prune", f"{tmp_path}/{words[0]}", *words[1:]])
    assert done.exit_code == 0, done.output
    assert "calibrating on 48 images" in done.output
    assert "criterion span" in done.output  # as for one input: enough images
    small = slimilar.load(tmp_path / "out/model.safetensors", names["Pair"]())
    assert small(*inputs).shape == (48, 4)


def test_the_command_line_says_which_arrays_it_expects(pair, inputs, tmp_path):
    (tmp_path / "net.py").write_text(CODE)
    np.savez(tmp_path / "samples.npz", x=inputs[0].numpy())
    words = ["analyze", f"{tmp_path}/net.py:Pair", "--input", "3x8x8", "--input", "1x4x4", "--input", "5"]
    done = CliRunner().invoke(app, [*words, "--calibrate", f"{tmp_path}/samples.npz"])
    assert done.exit_code == 1
    assert "input_0, input_1, input_2, or left, right, facts" in " ".join(done.output.split())
