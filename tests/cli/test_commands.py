"""What each command does and writes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

import slimilar
from helpers.commands import answer, run
from helpers.paths import TESTS
from helpers.small_networks import Mobile, images, trained
from slimilar.cli import app


@pytest.fixture(scope="module")
def net(tmp_path_factory) -> Path:
    """A Python file with a network, and its trained weights beside it."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("net")
    (folder / "net.py").write_text(
        f"import sys\nsys.path.insert(0, {str(TESTS)!r})\nfrom helpers.small_networks import Mobile\n"
    )
    save_file(trained(Mobile()).state_dict(), folder / "net.safetensors")
    torch.save({"state_dict": trained(Mobile()).state_dict()}, folder / "net.pt")
    return folder


def words_for(net: Path) -> list[str]:
    return [f"{net}/net.py:Mobile", "--weights", f"{net}/net.pt", "--input", "3x32x32"]


@pytest.fixture(scope="module")
def small(net: Path) -> Path:
    """The folder of a pruned network."""
    CliRunner().invoke(app, ["prune", *words_for(net), "--flops", "0.6", "-o", str(net / "small")])
    return net / "small"


def test_analyze_for_people():
    text = run("analyze", "slimilar:demo")
    assert "features.conv1_1         24" in text
    assert re.search(r"model output\s+classifier \(10\)", text)
    assert "100 % ┤" in text
    assert "Next\n  slimilar prune slimilar:demo --flops 0.5" in text
    assert "\x1b" not in text


def test_analyze_for_programs(net):
    found = answer("analyze", *words_for(net))
    assert list(found) == ["model", "input", "criterion", "cost", "groups", "frozen", "curve"]
    assert found["input"] == [[3, 32, 32]]
    assert {g["name"]: g["channels"] for g in found["groups"]} == {"expand.0": 24}
    assert {f["name"]: f["reason"] for f in found["frozen"]}["head"] == "model output"
    curve = found["curve"]
    assert curve["flops"][0] == found["cost"]["flops"]
    assert curve["flops"] == sorted(curve["flops"], reverse=True)
    assert len({len(values) for values in curve.values()}) == 1


def test_analyze_writes_the_page_on_request(net, tmp_path):
    page = tmp_path / "page.html"
    text = run("analyze", *words_for(net), "--report", page)
    assert f"The explorer was written to {page}" in text.replace("\n", "")
    assert page.read_text().startswith("<!doctype html>")


def test_quiet_is_quiet(net):
    assert run("analyze", *words_for(net), "--quiet") == ""


def test_prune_writes_a_model_a_plan_and_a_report(net, tmp_path):
    found = answer("prune", *words_for(net), "--flops", "0.6", "--round-to", "4", "-o", tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "model.safetensors",
        "plan.json",
        "recipe.yaml",
        "report.html",
    ]
    layer = found["layers"]["expand.0"]
    assert layer["before"] == 24
    assert layer["after"] == len(layer["kept"]) < 24
    assert layer["after"] % 4 == 0
    assert sorted(unit for _, members in layer["clusters"] for unit in members) == list(range(24))
    assert found["cost"]["after"]["flops"] <= 0.6 * found["cost"]["before"]["flops"]
    plan = json.loads((tmp_path / "plan.json").read_text())
    assert plan["layers"] == found["layers"]
    model = slimilar.load(tmp_path / "model.safetensors", Mobile())
    assert model.expand[0].out_channels == layer["after"]
    assert "--weights" in (tmp_path / "report.html").read_text()


def test_a_layer_may_have_a_threshold_of_its_own(net, tmp_path):
    found = answer("prune", *words_for(net), "-t", "0.4", "--layer", "expand.0=0", "-o", tmp_path)
    assert found["layers"]["expand.0"]["after"] == 24


def test_the_line_that_the_explorer_offers(tmp_path):
    line = "prune slimilar:demo --threshold 0.2 --round-to 8 --layer features.conv1_1=0 --linkage complete"
    found = answer(*line.split(), "--residual", "joint", "--input", "3x32x32", "-o", tmp_path)
    assert found["layers"]["features.conv1_1"]["after"] == 24
    assert all(layer["after"] % 8 == 0 for layer in found["layers"].values())


def test_a_saved_model_is_pruned_again(small, net, tmp_path):
    found = answer(
        "prune",
        small / "model.safetensors",
        "--base",
        f"{net}/net.py:Mobile",
        "--flops",
        "0.8",
        "-o",
        tmp_path,
    )
    assert found["model"] == f"{net}/net.py:Mobile"
    slimilar.load(tmp_path / "model.safetensors", Mobile())


def test_a_budget_of_time(net, tmp_path, monkeypatch):
    monkeypatch.setattr("slimilar.planning.latency.PROBES", 1)
    found = answer("prune", *words_for(net), "--latency", "0.99", "-o", tmp_path)
    assert set(found["latency"]) == {"before_ms", "after_ms", "ratio"}


@pytest.mark.parametrize("kind", ["folder", "bytes", "floats"])
def test_calibration_pictures_of_every_kind(kind, net, tmp_path):
    from PIL import Image

    random = np.random.default_rng(0)
    images = random.integers(0, 256, (32, 32, 32, 3), dtype=np.uint8)
    place = tmp_path / "some" if kind == "folder" else tmp_path / "some.npz"
    if kind == "folder":
        place.mkdir()
        for i, image in enumerate(images):
            Image.fromarray(image).save(place / f"{i}.png")
    elif kind == "bytes":
        np.savez(place, images=images)
    else:
        np.savez(place, x=random.normal(size=(32, 3, 32, 32)).astype(np.float32))
    found = answer("prune", *words_for(net), "--flops", "0.7", "--calibrate", place, "-o", tmp_path / "out")
    assert found["substitute"] == "linear"
    scores = found["scores"]  # as in Python, it has to beat plain plans on held-out images
    assert {"span", "magnitude-l2", "similarity"} <= set(scores)
    taken = [name for name in scores if name.removesuffix(", data-free") == found["criterion"]]
    assert min(scores[name] for name in taken) <= 1.5 * min(scores.values())
    slimilar.load(tmp_path / "out" / "model.safetensors", Mobile())


def test_pictures_made_from_the_model_itself(net, tmp_path):
    words = ["--flops", "0.7", "--calibrate", "synthesize", "--images", "4"]
    found = answer("prune", *words_for(net), *words, "-o", tmp_path)
    assert (found["criterion"], found["substitute"]) == ("similarity", "linear")  # four are too few for span


def test_inspect_shows_what_a_file_holds(small):
    file = small / "model.safetensors"
    text = run("inspect", file)
    assert "complete and unmodified" in text
    assert re.search(r"expand\.0\s+24\s+\d+", text)
    found = answer("inspect", file)
    assert found["class"].endswith("Mobile")
    assert found["bytes"] == file.stat().st_size
    shapes = {tensor["name"]: tensor["shape"] for tensor in found["tensors"]}
    assert shapes["expand.0.weight"][0] == found["widths"]["expand.0"][1]


def test_inspect_notices_an_altered_file(small, tmp_path):
    content = bytearray((small / "model.safetensors").read_bytes())
    content[-5] ^= 1
    (tmp_path / "bad.safetensors").write_bytes(content)
    assert "its checksum differs" in " ".join(run("inspect", tmp_path / "bad.safetensors", code=1).split())


def test_evaluate_compares_models():
    found = answer("evaluate", "slimilar:demo", "--data", "demo", "--limit", 50)
    assert found["slimilar:demo"]["images"] == 50
    assert found["slimilar:demo"]["accuracy"] > 0.5
    assert re.search(r"slimilar:demo\s+\d+\.\d %", run("evaluate", "slimilar:demo", "--limit", 50))


def test_bench_runs_models_in_turn(net):
    first = f"{net}/net.py:Mobile"
    found = answer("bench", first, first, "--input", "3x32x32", "--seconds", 0.1, "--batch", 2)
    timing = found["engines"]["pytorch"][first]
    assert timing["rounds"] >= 11
    assert timing["milliseconds"]["low"] <= timing["milliseconds"]["value"] <= timing["milliseconds"]["high"]
    assert timing["ratio"]["value"] == 1


def test_explore_writes_a_page(net, tmp_path, monkeypatch):
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    page = tmp_path / "page.html"
    assert answer("explore", *words_for(net), "-o", page, "--no-open") == {"report": str(page)}
    assert opened == []
    run("explore", *words_for(net), "-o", page)
    assert opened == [page.resolve().as_uri()]


def test_export_writes_onnx_that_answers_alike(small, net, tmp_path):
    file = small / "model.safetensors"
    found = answer("export", file, "--base", f"{net}/net.py:Mobile", "-o", tmp_path / "small.onnx")
    assert found["error"] < 1e-5
    session = onnxruntime.InferenceSession(found["file"], providers=["CPUExecutionProvider"])
    (given,) = session.run(None, {"input": images(3).numpy()})
    with torch.no_grad():
        wanted = slimilar.load(file, Mobile())(images(3))
    assert torch.allclose(torch.from_numpy(given), wanted, atol=1e-5)


def test_export_replaces_no_file_unasked(small, net, tmp_path):
    (tmp_path / "small.onnx").write_text("mine")
    words = [
        "export",
        small / "model.safetensors",
        "--base",
        f"{net}/net.py:Mobile",
        "-o",
        tmp_path / "small.onnx",
    ]
    assert "pass --force" in " ".join(run(*words, code=2).split())
    assert (tmp_path / "small.onnx").read_text() == "mine"
    assert answer(*words, "--force")["bytes"] > 1000


def test_train_and_finetune_write_models_that_load(tmp_path):
    name = "slimilar:vgg16,width=0.125"
    common = ["--data", "demo", "--epochs", "1", "--limit", "64"]
    found = answer("train", name, *common, "-o", tmp_path / "trained", "--recipe", "quick")
    assert len(found["history"]) == 1
    answer("prune", found["model"], "--flops", "0.8", "-o", tmp_path / "small")
    tuned = answer(
        "finetune",
        tmp_path / "small" / "model.safetensors",
        *common,
        "-o",
        tmp_path / "tuned",
        "--teacher",
        found["model"],
    )
    assert 0 <= tuned["start_accuracy"] <= 1
    model, before = slimilar.load(tuned["model"]), slimilar.load(tmp_path / "small" / "model.safetensors")
    shapes = {name: t.shape for name, t in model.state_dict().items()}
    assert shapes == {name: t.shape for name, t in before.state_dict().items()}
    said = run(
        "finetune", tmp_path / "small" / "model.safetensors", *common, "-o", tmp_path / "tuned", code=1
    )
    assert "already holds a run" in said
    still = answer(
        "finetune", tmp_path / "small" / "model.safetensors", *common, "-o", tmp_path / "still", "--freeze-statistics"
    )  # fmt: skip
    frozen = slimilar.load(still["model"]).state_dict()
    for name, tensor in before.state_dict().items():
        if name.endswith(("running_mean", "running_var")):
            assert torch.equal(frozen[name], tensor)
            assert not torch.equal(model.state_dict()[name], tensor)
        elif name.endswith("conv1_1.weight"):
            assert not torch.equal(frozen[name], tensor)
