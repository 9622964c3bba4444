"""The page on detectors keeps its word: its code prunes, saves, trains, resumes and exports, on images drawn here."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import slimilar
from helpers.paths import DOCS
from helpers.zoo_check import look_trained
from slimilar.errors import InvalidInput
from slimilar.models.detectors import RawPredictions
from slimilar.utils.torchvision_compat import import_torchvision

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # the library's own warnings
PAGE = DOCS / "detectors.md"
FAST = 'epochs=2, imgsz=64, batch=4, workers=0, plots=False, device="cpu", project=runs, save_period=1'


def draw(root: Path, count: int) -> None:
    """Write images of red squares, with their boxes."""
    random = np.random.default_rng(0)
    for part in ("train", "val"):
        for kind in ("images", "labels"):
            (root / kind / part).mkdir(parents=True)
        for i in range(count):
            image = (random.random((64, 64, 3)) * 80).astype(np.uint8)
            x, y = random.integers(4, 36, 2)
            image[y : y + 24, x : x + 24] = (220, 30, 30)
            Image.fromarray(image).save(root / "images" / part / f"{i}.png")
            box = f"0 {(x + 12) / 64} {(y + 12) / 64} {24 / 64} {24 / 64}\n"
            (root / "labels" / part / f"{i}.txt").write_text(box)
    (root / "data.yaml").write_text(
        f"path: {root}\ntrain: images/train\nval: images/val\nnames: {{0: square}}\n"
    )


def test_the_page_on_detectors_runs(tmp_path, monkeypatch, capsys):
    """Its code from top to bottom: prune, save, load, train, resume, export; at 64 pixels."""
    import_torchvision()
    ultralytics = pytest.importorskip("ultralytics")
    draw(tmp_path, 16)
    monkeypatch.chdir(tmp_path)
    full = ultralytics.YOLO("yolov8n.yaml")  # weights would have to be fetched
    look_trained(full.model)
    full.save("best.pt")
    code = "\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL))
    for told, here in (
        ("(640, 640)", "(64, 64)"),
        (
            "flops=0.6, calibration=images",
            'flops=0.6, calibration=images, criterion="magnitude-l2"',
        ),  # for time
        ("epochs=10, imgsz=640", FAST),
        ("small.predict(files[0])", "small.predict(files[0], imgsz=64)"),
        ("imgsz=640", "imgsz=64"),
        ('YOLO("runs/detect/train/weights/last.pt")', "YOLO(stopped)"),
    ):
        assert told in code
        code = code.replace(told, here)
    first, _, rest = code.partition("YOLO(stopped)")
    found: dict[str, Any] = {
        "runs": str(tmp_path / "runs"),
        "files": sorted(map(str, (tmp_path / "images" / "train").iterdir())),
    }
    exec(compile(first.rpartition("\n")[0], PAGE.name, "exec"), found)
    assert "FLOPs" in capsys.readouterr().out
    trained, result = found["small"], found["result"]
    width = sum(p.numel() for p in trained.model.parameters())
    assert width == result.cut.params < 0.8 * result.cut.before.params
    found["stopped"] = next(
        tmp_path.rglob("epoch0.pt")
    )  # what a run leaves that is stopped after its first epoch
    exec(compile("YOLO(stopped)" + rest, PAGE.name, "exec"), found)
    last = ultralytics.YOLO(next(tmp_path.rglob("last.pt")))
    assert sum(p.numel() for p in last.model.parameters()) == width
    assert (tmp_path / "small.onnx").exists()


@pytest.mark.parametrize("kind", ["", "-seg", "-pose", "-obb"])
def test_heads_of_all_tasks_keep_what_they_predict(kind):
    """Pruned with images: what the head predicts has its shape, and the neck's last layers are narrower."""
    import_torchvision()
    ultralytics = pytest.importorskip("ultralytics")
    network = RawPredictions(ultralytics.YOLO(f"yolov8n{kind}.yaml").model).eval()
    look_trained(network)
    images = torch.rand(16, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    result = slimilar.prune(network, images[:1], flops=0.6, calibration=images, criterion="magnitude-l2")
    wanted, found = network(images), result.model(images)
    assert not network.detector.model[-1].training  # decodes boxes as before
    assert [t.shape for t in found] == [t.shape for t in wanted]
    assert (
        result.model.detector.model[15].cv2.conv.out_channels
        < network.detector.model[15].cv2.conv.out_channels
    )
    decoded, before = (net.unwrapped()(images)[0][0] for net in (result.model, network))
    assert decoded.shape == before.shape


def test_a_network_without_a_head_for_boxes_is_refused():
    with pytest.raises(InvalidInput, match=r"YOLO\(...\).model, got Sequential"):
        RawPredictions(torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3)))
