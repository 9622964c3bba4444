"""The page on detectors keeps its word: its code prunes, trains and predicts, on images drawn here."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from helpers.paths import DOCS
from slimilar.utils.torchvision_compat import import_torchvision

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # the library's own warnings
PAGE = DOCS / "detectors.md"
FAST = 'data="data.yaml", epochs=1, imgsz=64, batch=4, workers=0, plots=False, amp=False, device="cpu", project="runs"'


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
    import_torchvision()
    pytest.importorskip("ultralytics")
    draw(tmp_path, 8)
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    for told, here in (
        ('"yolov8n.pt")', '"yolov8n.yaml")\nlook_trained(yolo.model)'),  # weights would have to be fetched
        ('data="data.yaml", epochs=10', FAST),
        ('"photo.png"', '"images/val/0.png", imgsz=64'),
    ):
        assert told in code
        code = code.replace(told, here)
    from helpers.zoo_check import look_trained

    found: dict[str, object] = {"look_trained": look_trained}
    exec(compile(code, PAGE.name, "exec"), found)
    assert "FLOPs" in capsys.readouterr().out
    yolo, result = found["yolo"], found["result"]
    trained = sum(p.numel() for p in yolo.model.parameters())  # type: ignore[attr-defined]
    assert trained == result.cut.params < 0.8 * result.cut.before.params  # type: ignore[attr-defined]
