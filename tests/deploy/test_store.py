"""Saving and loading: every bit comes back, from a fresh model of the class or from its name alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import slimilar
from helpers.paths import TESTS
from helpers.small_networks import NETWORKS, Dense, Mobile, Tied, images, trained
from slimilar.deploy.file_format import inspect
from slimilar.deploy.model_names import parse
from slimilar.deploy.sources import build
from slimilar.deploy.store import NO_SURGERY
from slimilar.errors import InvalidInput, StoreError
from slimilar.graph.groups import Residual
from slimilar.surgery.history import HISTORY
from slimilar.surgery.rewrite import add_bias


def pruned(name: str, flops: float = 0.7) -> slimilar.Result:
    build, residual = NETWORKS[name]
    return slimilar.prune(trained(build()), images(1), flops=flops, residual=residual)


def same(a: nn.Module, b: nn.Module) -> None:
    """Both models hold the same bits under the same names and answer with the same bits."""
    left, right = a.state_dict(), b.state_dict()
    assert list(left) == list(right)
    for name in left:
        assert left[name].dtype == right[name].dtype, name
        assert torch.equal(left[name], right[name]), name
    with torch.no_grad():
        assert torch.equal(a.eval()(images()), b.eval()(images()))


@pytest.mark.parametrize("name", NETWORKS)
def test_every_bit_comes_back(name, tmp_path):
    result = pruned(name)
    assert result.cut.flops < result.cut.before.flops
    file = slimilar.save(result, tmp_path / "small.safetensors")
    loaded = slimilar.load(file, NETWORKS[name][0]())
    same(loaded, result.model)
    assert type(loaded) is type(result.model)
    assert not loaded.training


@pytest.mark.parametrize("name", NETWORKS)
def test_a_model_pruned_again_still_loads_from_its_first_class(name, tmp_path):
    build, residual = NETWORKS[name]
    file = slimilar.save(pruned(name, 0.8), tmp_path / "once.safetensors")
    once = slimilar.load(file, build())
    twice = slimilar.prune(once, images(1), flops=0.85, residual=residual)
    file = slimilar.save(twice, tmp_path / "twice.safetensors")
    loaded = slimilar.load(file, build())
    same(loaded, twice.model)
    again = slimilar.save(loaded, tmp_path / "again.safetensors")
    same(slimilar.load(again, build()), twice.model)


def test_the_residual_words_are_all_covered():
    assert {residual for _, residual in NETWORKS.values()} == set(get_args(Residual))


def test_biases_that_a_substitution_adds(tmp_path):
    result = pruned("vgg")
    surgery = replace(result.surgery, biases=frozenset({"features.conv2_1"}))
    layer = result.model.get_submodule("features.conv2_1")
    add_bias(layer)
    nn.init.normal_(layer.bias)
    setattr(result.model, HISTORY, surgery)
    file = slimilar.save(result, tmp_path / "small.safetensors")
    same(slimilar.load(file, NETWORKS["vgg"][0]()), result.model)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_the_number_format_is_kept(dtype, tmp_path):
    model = slimilar.prune(trained(Mobile()), images(1), flops=0.7).model.to(dtype)
    file = slimilar.save(model, tmp_path / "small.safetensors")
    loaded = slimilar.load(file, Mobile())
    assert next(loaded.parameters()).dtype == dtype
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, loaded.state_dict()[name])


def test_tied_tensors_are_stored_once_and_stay_tied(tmp_path):
    result = pruned("tied", 0.5)
    file = slimilar.save(result, tmp_path / "small.safetensors")
    assert inspect(file).tied == {"right.0.weight": "left.0.weight"}
    loaded: Any = slimilar.load(file, Tied())
    assert loaded.left[0].weight is loaded.right[0].weight
    assert loaded.width == result.model.width < 12


def test_tensors_that_were_untied_do_not_load_into_a_class_that_ties_them(tmp_path):
    class Untied(Tied):
        def __init__(self) -> None:
            super().__init__()
            self.right[0].weight = nn.Parameter(torch.randn_like(self.left[0].weight))

    file = slimilar.save(Untied(), tmp_path / "untied.safetensors")
    with pytest.raises(StoreError, match="must contain one tensor for right"):
        slimilar.load(file, Tied())


def test_buffers_outside_the_state_dict_come_from_the_fresh_model(tmp_path):
    result = pruned("densenet", 0.5)
    assert result.model.scale.shape[1] < 8
    file = slimilar.save(result, tmp_path / "small.safetensors")
    assert "scale" not in load_file(file)
    loaded: Any = slimilar.load(file, Dense())
    assert torch.equal(loaded.scale, result.model.scale)


def test_the_given_models_are_left_as_they_were(tmp_path):
    result = pruned("mobilenet")
    fresh = Mobile().train()
    before = {name: t.clone() for name, t in fresh.state_dict().items()}
    slimilar.load(slimilar.save(result, tmp_path / "small.safetensors"), fresh)
    assert fresh.training
    assert all(torch.equal(t, before[name]) for name, t in fresh.state_dict().items())


@pytest.mark.parametrize(
    "source", ["slimilar:vgg16,classes=5,width=0.125", "torchvision:resnet18", "timm:test_resnet"]
)
def test_known_names_are_enough(source, tmp_path):
    result = slimilar.prune(trained(build(parse(source))), images(1), flops=0.9)
    file = slimilar.save(result, tmp_path / "small.safetensors", source=source)
    same(slimilar.load(file), result.model)


def test_a_model_that_was_trained_on_and_one_that_was_never_pruned(tmp_path):
    tuned = deepcopy(pruned("mobilenet").model)
    with torch.no_grad():
        tuned.head.weight.add_(1)
    same(slimilar.load(slimilar.save(tuned, tmp_path / "tuned.safetensors"), Mobile()), tuned)
    whole = trained(Mobile())
    file = slimilar.save(whole, tmp_path / "whole.safetensors")
    assert inspect(file).surgery.indices == NO_SURGERY.indices
    same(slimilar.load(file, Mobile()), whole)


def test_others_read_it_as_a_state_dict_and_theirs_fits(tmp_path):
    result = pruned("mobilenet")
    file = slimilar.save(result, tmp_path / "small.safetensors")
    assert load_file(file).keys() == result.model.state_dict().keys()
    torch.save(result.model.state_dict(), tmp_path / "tuned.pt")
    loaded = slimilar.load(file, Mobile())
    loaded.load_state_dict(torch.load(tmp_path / "tuned.pt", weights_only=True))
    same(loaded, result.model)


def test_what_a_file_tells(tmp_path):
    result = pruned("mobilenet")
    file = slimilar.save(result, tmp_path / "small.safetensors", source="net.py:Mobile", note={"seed": 3})
    stored = inspect(file)
    assert stored.source == "net.py:Mobile"
    assert stored.info["input"] == [[1, 3, 32, 32]]
    assert stored.info["threshold"] == result.cut.threshold
    assert stored.info["cost"]["before"]["flops"] == result.cut.before.flops
    assert stored.info["cost"]["after"]["params"] == sum(p.numel() for p in result.model.parameters())
    assert stored.info["widths"]["expand.0"] == [24, result.cut.widths["expand.0"]]
    assert stored.info["note"] == {"seed": 3}


def test_the_same_model_gives_the_same_bytes(tmp_path):
    result = pruned("mobilenet")
    a = slimilar.save(result, tmp_path / "a.safetensors").read_bytes()
    assert a == slimilar.save(result, tmp_path / "b.safetensors").read_bytes()


# --- what goes wrong ------------------------------------------------------------------------------------------


def test_a_crash_while_writing_leaves_the_old_file(tmp_path, monkeypatch):
    file = slimilar.save(pruned("mobilenet"), tmp_path / "small.safetensors")
    before = file.read_bytes()

    def crash(tensors: Any, path: Path, metadata: Any) -> None:
        path.write_bytes(b"half a fi")
        raise KeyboardInterrupt

    monkeypatch.setattr("slimilar.deploy.store.save_file", crash)
    with pytest.raises(KeyboardInterrupt):
        slimilar.save(pruned("mobilenet"), file)
    assert file.read_bytes() == before
    assert os.listdir(tmp_path) == ["small.safetensors"]


def test_a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match="could not be written"):
        slimilar.save(Mobile(), tmp_path / "file" / "small.safetensors")


def test_states_that_only_pickle_could_hold(tmp_path):
    class Odd(Mobile):
        def get_extra_state(self) -> Any:
            return {"anything": object()}

        def set_extra_state(self, state: Any) -> None: ...

    with pytest.raises(InvalidInput, match="without pickle, got _extra_state"):
        slimilar.save(Odd(), tmp_path / "odd.safetensors")
    with pytest.raises(InvalidInput, match="meta device"):
        slimilar.save(Mobile().to("meta"), tmp_path / "odd.safetensors")
    assert not list(tmp_path.iterdir())


def test_files_that_are_not_ours(tmp_path):
    with pytest.raises(StoreError, match="no such file"):
        slimilar.load(tmp_path / "none.safetensors")
    with pytest.raises(StoreError, match="is a folder; name the file in it"):
        slimilar.load(tmp_path)
    torch.save({"a": torch.zeros(2)}, tmp_path / "pickle.pt")
    with pytest.raises(StoreError, match="but has another suffix"):
        slimilar.load(tmp_path / "pickle.pt")
    save_file({"a": torch.zeros(2)}, tmp_path / "weights.safetensors")
    with pytest.raises(StoreError, match="contains only weights"):
        slimilar.load(tmp_path / "weights.safetensors")
    save_file({}, tmp_path / "new.safetensors", {"slimilar": json.dumps({"version": 99})})
    with pytest.raises(StoreError, match="update slimilar"):
        slimilar.load(tmp_path / "new.safetensors")


def test_another_class_or_width_is_noticed(tmp_path):
    file = slimilar.save(pruned("tied"), tmp_path / "small.safetensors")
    with pytest.raises(StoreError, match="there is no tensor"):
        slimilar.load(file, nn.Linear(3, 3))
    with pytest.raises(StoreError, match="has no such channels"):
        slimilar.load(file, Tied(width=4))
    other = Tied()
    other.head = nn.Linear(12, 6)
    with pytest.raises(
        StoreError, match=r"head.weight is \(5, \d+\) in the file and \(6, \d+\) in the model"
    ):
        slimilar.load(file, other)
    with pytest.raises(StoreError, match="pass a fresh model"):
        slimilar.load(file)


def test_code_that_a_file_names_is_not_run(tmp_path):
    code = tmp_path / "harm.py"
    code.write_text(f"import pathlib; pathlib.Path({str(tmp_path / 'ran')!r}).touch()\n")
    file = slimilar.save(Mobile(), tmp_path / "small.safetensors", source=f"{code}:Mobile")
    with pytest.raises(StoreError, match="pass a fresh model"):
        slimilar.load(file)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "source",
    [
        "slimilar:vgg16,width=1e9",
        "slimilar:vgg16,width=1e308",
        "slimilar:vgg16,width=nan",
        "slimilar:vgg16,classes=1000000000000",
        "torchvision:resnet18,num_classes=100000000000000",
        "torchvision:resnet18,weights='DEFAULT'",
        "timm:hf-hub:somebody/something",
        "timm:../../etc/passwd",
        "timm:test_resnet,pretrained=True",
        "nonsense",
    ],
)
def test_names_that_mean_harm(source, tmp_path):
    file = slimilar.save(pruned("vgg"), tmp_path / "small.safetensors", source=source)
    with pytest.raises(StoreError):
        slimilar.load(file)


@pytest.mark.parametrize(("network", "count"), [("tied", 1600), ("preresnet-select", 400)])
def test_thousands_of_mutated_files(network, count, tmp_path):
    """In a process of its own, with little memory to take: only StoreError, or the model as it was."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "helpers.fuzz_load", str(tmp_path), str(count), network],
        capture_output=True, text=True, timeout=240, cwd=TESTS,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    counts = json.loads(done.stdout)
    assert counts["refused"] > count / 2
    assert sum(counts.values()) == count
