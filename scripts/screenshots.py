"""Draw the images of the report in docs/images/, with a browser.

    make screenshots                                     a ResNet-50 with random batch norms
    make screenshots ARGS="resnet50-imagenet FOLDER"     the published checkpoint in FOLDER

A laptop in both themes, one layer close up, and a phone; with few colours, so that the files stay small.
"""

from __future__ import annotations

import io
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from _browser import PHONE, OpenPage, started
from _zoo.oracle import randomise
from PIL import Image

from slimilar import analyze
from slimilar.models import pretrained
from slimilar.report import write_report
from slimilar.utils.torchvision_compat import import_torchvision

ROOT = Path(__file__).parents[1]
LAYER = "layer1.1.conv1"


def network(arguments: list[str]) -> torch.nn.Module:
    """Return a ResNet-50: a published one if it is named, else one with random batch norms."""
    if arguments:
        return pretrained(*arguments).model
    torch.manual_seed(0)
    return randomise(import_torchvision("torchvision.models").resnet50())


def save(shot: bytes, name: str) -> None:
    """Write an image with a palette of 256 colours."""
    # Rare colours count as much as common ones: a small dot may be all that a legend has.
    method, dither = Image.Quantize.MAXCOVERAGE, Image.Dither.NONE
    image = Image.open(io.BytesIO(shot)).convert("RGB").quantize(256, method, kmeans=2, dither=dither)
    image.save(ROOT / "docs" / "images" / f"{name}.png", optimize=True)


def look(browser: Any, file: Path, **options: Any) -> OpenPage:
    """Open the page at half the FLOPs, with a layer close up where there is room."""
    view = OpenPage(browser, file, reduced_motion="reduce", **options)
    view.page.fill("#budget", "50%")
    view.page.press("#budget", "Enter")
    view.page.fill("#budget", "")
    view.page.press("#budget", "Enter")  # takes the note away
    view.page.evaluate("document.activeElement.blur()")
    view.page.locator("#rows button", has_text=LAYER).click()
    view.page.mouse.move(0, 0)
    view.page.evaluate("scrollTo(0, 0)")
    view.settle()
    return view


def main() -> None:
    (ROOT / "docs" / "images").mkdir(parents=True, exist_ok=True)
    model = network(sys.argv[1:])
    plan = analyze(model, torch.zeros(1, 3, 224, 224))
    with tempfile.TemporaryDirectory() as folder, started() as browser:
        source = "torchvision:resnet50 --input 3x224x224"
        file = write_report(Path(folder) / "page.html", plan, model=model, title="ResNet-50", source=source)
        for theme in ("light", "dark"):
            view = look(browser, file, color_scheme=theme, viewport={"width": 1440, "height": 1330})
            save(view.page.screenshot(), f"explorer-{theme}")
        view = look(browser, file, device_scale_factor=1.5, viewport={"width": 1440, "height": 1600})
        save(view.page.locator("#layer").screenshot(), "explorer-layer")
        phone = {"viewport": PHONE, "device_scale_factor": 2, "is_mobile": True, "has_touch": True}
        view = look(browser, file, **phone)
        save(view.page.screenshot(), "explorer-phone-layer")
        view.page.keyboard.press("Escape")
        view.page.evaluate("scrollTo(0, 0)")
        view.settle()
        save(view.page.screenshot(), "explorer-phone")


if __name__ == "__main__":
    main()
