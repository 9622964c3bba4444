"""Prune, then quantise: accuracy, time and size of the demo network in float32 and int8, whole and at half its FLOPs.

    python benchmarks/int8.py > benchmarks/results/int8.txt

Calibrated on training images of the package, scored on its 1,000 test images; time of one image, the two files in turn.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from _results import print_header

from slimilar.planning.cost import human

SEED = 0


def slimilar(*words: str) -> dict[str, Any]:
    """Return what a command answers."""
    line = [sys.executable, "-m", "slimilar", *words, "--json"]
    done = subprocess.run(line, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def quantised(model: str, folder: Path) -> dict[str, Any]:
    """Return what was measured of a model's float and int8 files."""
    file = str(folder / "int8.onnx")
    return slimilar("export", model, "-o", file, "--int8", "--calibrate", "demo", "--data", "demo")


def main() -> None:
    """Print the table."""
    print_header("python benchmarks/int8.py", SEED)
    print(f"\n{'network':<16} {'file':<8} {'bytes':>10} {'ms':>7} {'accuracy':>9}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        slimilar(
            "prune", "slimilar:demo", "--flops", "0.5", "--calibrate", "demo", "-o", str(folder / "half")
        )
        for name, model in (
            ("whole", "slimilar:demo"),
            ("half the FLOPs", str(folder / "half" / "model.safetensors")),
        ):
            found = quantised(model, folder)
            for kind, size in (("float", "float_bytes"), ("int8", "bytes")):
                ms, accuracy = found["milliseconds"][kind], found["accuracy"][kind]
                print(
                    f"{name:<16} {kind:<8} {human(found[size]):>9}B {ms:>7.3f} {100 * accuracy:>7.1f} %",
                    flush=True,
                )


if __name__ == "__main__":
    main()
