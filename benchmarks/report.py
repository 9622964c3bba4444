"""How large the report's page is, how soon it answers, and what one step of dragging costs, in a real browser.

    python benchmarks/report.py > benchmarks/results/report.txt

ResNet-50 and DenseNet-121 at 224 x 224, random batch norms; Chromium without a graphics card, 1440 x 900, a layer
open beside the curve. "ready": from the start of loading until the page has drawn and answers, the median of five.
"step": all that the main thread does in the frame after the slider moved (script, style, layout, paint), over 100
positions of the slider, by the clock and in CPU time, which other programs on the machine disturb less.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch
from _browser import OpenPage, started
from _results import print_header
from _zoo.oracle import randomise

from slimilar import analyze
from slimilar.graph.groups import Residual
from slimilar.report import write_report
from slimilar.utils.torchvision_compat import import_torchvision

SEED, LOADS = 0, 5
NETWORKS: tuple[tuple[str, Residual], ...] = (
    ("resnet50", "inner"),
    ("resnet50", "joint"),
    ("densenet121", "inner"),
)

# The first callback of a frame starts the clock; a message that was sent there arrives when the frame is painted.
STEPS = """async () => {
    const slider = document.getElementById("slider"), times = [];
    for (let position = 50; position < 850; position += 8) {
        await new Promise(done => {
            requestAnimationFrame(() => {
                const start = performance.now(), channel = new MessageChannel();
                channel.port1.onmessage = () => { times.push(performance.now() - start); done(); };
                channel.port2.postMessage(0);
            });
            slider.value = String(position);
            slider.dispatchEvent(new Event("input", { bubbles: true }));
        });
    }
    return times;
}"""
READY = (
    "() => Math.max(slimilar.ready, ...performance.getEntriesByType('paint').map(entry => entry.startTime))"
)


def page_of(name: str, residual: Residual, folder: Path) -> Path:
    """Write the report of a torchvision network."""
    torch.manual_seed(SEED)
    model = randomise(getattr(import_torchvision("torchvision.models"), name)())
    plan = analyze(model, torch.zeros(1, 3, 224, 224), residual=residual)
    return write_report(folder / f"{name}-{residual}.html", plan, model=model, title=name)


def ready(browser: Any, file: Path) -> float:
    """Return the milliseconds until the page answers."""
    view = OpenPage(browser, file)
    view.page.wait_for_timeout(500)
    found: float = view.page.evaluate(READY)
    view.context.close()
    return found


def drag(browser: Any, file: Path) -> tuple[list[float], float]:
    """Return the milliseconds of every step by the clock, and those of one in CPU time of the main thread."""
    view = OpenPage(browser, file)
    view.page.wait_for_timeout(500)
    inside = view.context.new_cdp_session(view.page)
    inside.send("Performance.enable", {"timeDomain": "threadTicks"})

    def busy() -> float:
        metrics = inside.send("Performance.getMetrics")["metrics"]
        seconds: float = next(m["value"] for m in metrics if m["name"] == "TaskDuration")
        return 1000 * seconds

    before = busy()
    steps: list[float] = view.page.evaluate(STEPS)
    spent = (busy() - before) / len(steps)
    assert not view.problems, view.problems
    view.context.close()
    return steps, spent


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, started() as browser:
        print_header("python benchmarks/report.py", SEED)
        print(f"# browser   Chromium {browser.version}")
        print(
            f"\n{'network':<20}{'size':>10}{'ready':>10}{'step: median':>15}{'95 of 100':>12}{'CPU time':>12}"
        )
        for name, residual in NETWORKS:
            file = page_of(name, residual, Path(folder))
            loads = statistics.median(ready(browser, file) for _ in range(LOADS))
            steps, spent = drag(browser, file)
            print(
                f"{name + ', ' + residual:<20}{file.stat().st_size / 1e6:>7.2f} MB{loads:>7.0f} ms"
                f"{statistics.median(steps):>12.1f} ms{sorted(steps)[int(0.95 * len(steps))]:>9.1f} ms{spent:>9.1f} ms"
            )


if __name__ == "__main__":
    main()
