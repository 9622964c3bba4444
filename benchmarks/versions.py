"""Two versions of Slimilar side by side in one run: the time of the same calls, and the accuracy that they leave.

    python benchmarks/versions.py --old CHECKOUT --new CHECKOUT [--runs 9]            # time; alone on the machine
    python benchmarks/versions.py --old CHECKOUT --new CHECKOUT --data FOLDER         # accuracy

Each version has a process of its own, and their calls take turns. Times are the least and the median of processor time
on one thread. Accuracy is that of CIFAR-10 checkpoints on the first 2,000 test images, without fine-tuning, without
data and with 256 unlabelled images. Output: benchmarks/results/versions-time.txt and versions-accuracy.txt.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from _results import RESULTS

from slimilar.utils import provenance
from slimilar.utils.atomic import write_text

CALLS = {
    "analyze": "slimilar.analyze(net, x)",
    "remove, unverified": "slimilar.prune(net, x, threshold=0.1, substitute='none', verify=False)",
    "remove": "slimilar.prune(net, x, threshold=0.1, substitute='none')",
    "prune": "slimilar.prune(net, x, flops=0.5)",
}
TIMED = ("resnet50", "densenet121", "mobilenet_v2")
SCORED = ("vgg16-cifar10", "resnet56-cifar10")
LEFT = {"without data": (0.7, 0.5), "256 images": (0.7,)}


class Version:
    """A checkout, and the process in which its code runs."""

    def __init__(self, checkout: Path) -> None:
        worker = Path(__file__).with_name("_versions.py")
        self.commit = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], cwd=checkout, capture_output=True, text=True, check=True
        ).stdout.strip()
        self._process = subprocess.Popen(
            [sys.executable, str(worker), str(checkout / "src")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, **question: object) -> dict[str, float]:
        """Return the answer of the version's process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(question), file=self._process.stdin, flush=True)
        found: dict[str, float] = json.loads(self._process.stdout.readline())
        return found


def main() -> None:
    """Measure time, or accuracy if there is data."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--old", type=Path, required=True)
    parser.add_argument("--new", type=Path, required=True)
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--data", type=Path, help="folder with checkpoints and cifar10.npz: measure accuracy")
    options = parser.parse_args()
    versions = [Version(options.old), Version(options.new)]
    measure = accuracy if options.data else times
    name = "versions-accuracy.txt" if options.data else "versions-time.txt"
    arguments = "--data FOLDER" if options.data else f"--runs {options.runs}"
    lines = [
        f"python benchmarks/versions.py --old OLD --new NEW {arguments}",
        f"old {versions[0].commit}, new {versions[1].commit}; "
        + ", ".join(f"{n} {v}" for n, v in provenance.versions().items() if n != "slimilar"),
        provenance.hardware(),
        "",
    ]
    for line in measure(versions, options):
        print(line, flush=True)
        lines.append(line)
        write_text(RESULTS / name, "\n".join(lines) + "\n")


def times(versions: list[Version], options: argparse.Namespace) -> Iterator[str]:
    """Yield lines: the least and the median time of each call, and new by old."""
    yield f"{'network':<14}{'call':<20}{'old: least, median':>20}{'new: least, median':>20}{'new/old (least)':>17}"
    for network in TIMED:
        for name, call in CALLS.items():
            found: list[list[float]] = [[], []]
            for _ in range(options.runs):
                for version, seconds in zip(versions, found, strict=True):
                    seconds.append(version.ask(network=network, call=call)["seconds"])
            old, new = ((min(s), statistics.median(s)) for s in found)
            cells = [f"{least:.3f}, {median:.3f} s" for least, median in (old, new)]
            yield f"{network:<14}{name:<20}{cells[0]:>20}{cells[1]:>20}{new[0] / old[0]:>17.2f}"


def accuracy(versions: list[Version], options: argparse.Namespace) -> Iterator[str]:
    """Yield lines: FLOPs and accuracy that each call leaves with either version."""
    yield f"{'network':<18}{'images':<14}{'asked':>7}{'old: FLOPs, accuracy':>24}{'new: FLOPs, accuracy':>24}"
    for network in SCORED:
        for images, budgets in LEFT.items():
            for budget in budgets:
                asked = {"checkpoint": network, "folder": str(options.data), "flops": budget}
                found = [v.ask(**asked, images=256 if images == "256 images" else 0) for v in versions]
                cells = [f"{100 * f['flops']:.2f} %, {100 * f['accuracy']:.2f} %" for f in found]
                yield f"{network:<18}{images:<14}{budget:>7.0%}{cells[0]:>24}{cells[1]:>24}"


if __name__ == "__main__":
    main()
