"""Models by name, and weights from files of every kind."""

from __future__ import annotations

import pickle

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from helpers.small_networks import Mobile, trained
from slimilar.deploy.model_names import parse
from slimilar.deploy.sources import build, input_shape
from slimilar.deploy.weights import fill_
from slimilar.errors import DataError, InvalidInput


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("slimilar:resnet20,classes=100", (3, 32, 32)),
        ("slimilar:resnet20-cifar10", (3, 32, 32)),
        ("slimilar:demo", (3, 32, 32)),
        ("torchvision:squeezenet1_1,num_classes=7", (3, 224, 224)),
        ("timm:test_resnet,in_chans=1", (1, 160, 160)),
    ],
)
def test_known_names(text, shape):
    source = parse(text)
    assert str(source) == text
    assert input_shape(source, build(source)) == shape


def test_a_function_of_a_file_beside_its_helpers(tmp_path):
    (tmp_path / "parts_of_it.py").write_text("from torch import nn\nlayer = nn.Conv2d\n")
    file = tmp_path / "net.py"
    file.write_text(
        "import parts_of_it\ndef make():\n    return parts_of_it.layer(3, 4, 1)\nready = make()\nodd = 3\n"
    )
    assert isinstance(build(parse(f"{file}:make")), nn.Conv2d)
    assert isinstance(build(parse(f"{file}:ready")), nn.Conv2d)
    with pytest.raises(InvalidInput, match="did you mean make"):
        build(parse(f"{file}:maek"))
    with pytest.raises(InvalidInput, match="must be a class or a function that returns the model, got int"):
        build(parse(f"{file}:odd"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("resnet50", "must be given as torchvision:NAME"),
        ("torchvision:resnet51", "did you mean resnet5"),
        ("timm:resnet5o", "did you mean resnet50"),
        ("slimilar:vgg61", "did you mean vgg16"),
        ("slimilar:vgg16,width", "must look like width=0.5"),
        ("slimilar:vgg16,widht=2", "could not be built"),
        ("nowhere/net.py:make", "must be a Python file"),
    ],
)
def test_names_that_are_wrong(text, message):
    with pytest.raises(InvalidInput, match=message):
        build(parse(text))


def saved(kind: str, state: dict[str, torch.Tensor], folder) -> str:
    file = str(folder / ("w.safetensors" if kind == "safetensors" else "w.pt"))
    if kind == "safetensors":
        save_file(state, file)
    elif kind == "plain":
        torch.save(state, file)
    elif kind == "wrapped":
        torch.save({"epoch": 3, "state_dict": {f"module.{n}": t for n, t in state.items()}, "lr": 0.1}, file)
    else:
        lightning = {f"model.backbone.{n}": t for n, t in state.items()} | {"ema.count": torch.zeros(1)}
        torch.save({"model": {"state_dict": lightning}}, file)
    return file


@pytest.mark.parametrize("kind", ["safetensors", "plain", "wrapped", "nested"])
def test_weights_of_every_kind(kind, tmp_path):
    model = trained(Mobile())
    file = saved(kind, model.state_dict(), tmp_path)
    filled = fill_(Mobile(), file)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, filled.state_dict()[name])


def test_weights_without_step_counters(tmp_path):
    state = {n: t for n, t in Mobile().state_dict().items() if "num_batches" not in n}
    fill_(Mobile(), saved("safetensors", state, tmp_path))


def test_weights_that_do_not_fit(tmp_path):
    state = Mobile().state_dict()
    with pytest.raises(InvalidInput, match=r"head.weight is \(6, 8\) in the file and \(5, 8\)"):
        fill_(Mobile(), saved("plain", {**state, "head.weight": torch.zeros(6, 8)}, tmp_path))
    with pytest.raises(InvalidInput, match=r"head\.bias is missing"):
        fill_(Mobile(), saved("plain", {n: t for n, t in state.items() if n != "head.bias"}, tmp_path))
    with pytest.raises(InvalidInput, match="extra is not part of the model"):
        fill_(Mobile(), saved("plain", {**state, "extra": torch.zeros(1)}, tmp_path))


def test_weights_that_would_run_code(tmp_path):
    class Harm:
        def __reduce__(self):
            return (print, ("harm",))

    file = tmp_path / "harm.pt"
    file.write_bytes(pickle.dumps({"weight": Harm()}, protocol=2))
    with pytest.raises(DataError, match="without running code"):
        fill_(Mobile(), file)
    torch.save(Mobile(), file)
    with pytest.raises(DataError, match="without running code"):
        fill_(Mobile(), file)
    torch.save([1, 2], file)
    with pytest.raises(DataError, match="must contain a state dict"):
        fill_(Mobile(), file)
    with pytest.raises(DataError, match="but there is no such file"):
        fill_(Mobile(), tmp_path / "none.pt")
