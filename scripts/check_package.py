"""Build wheel and sdist, install each into an empty environment, run the demo there, and record the outcome.

    make package                                         with the interpreter that builds
    make package PYTHONS="python3.10 ... python3.13"     with these, one after another

Writes benchmarks/results/package.txt once all of them have passed. torch is the one of constraints.txt; the rest is
what pip chooses for a user. The environments are in a temporary folder outside the checkout.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from _results import RESULTS, header

from slimilar.utils.atomic import write_text

ROOT = Path(__file__).parents[1]
NAMES = ("torch", "numpy", "scipy", "typer", "rich")
VERSIONS = (
    "import json, platform; from importlib.metadata import version; "
    f"print(json.dumps([platform.python_version(), *map(version, {NAMES})]))"
)


def build(folder: Path) -> list[Path]:
    """Return the wheel and the sdist, newly built."""
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "build", "--outdir", str(folder), str(ROOT)], check=True)
    return [next(folder.glob("slimilar-*.whl")), next(folder.glob("slimilar-*.tar.gz"))]


def timed(command: Sequence[str | Path], folder: Path) -> float:
    """Run a command as a user would, without this checkout on the path, and return its seconds."""
    outside = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    start = time.perf_counter()
    subprocess.run([str(word) for word in command], cwd=folder, env=outside, check=True)
    return time.perf_counter() - start


def check(interpreter: str, package: Path) -> str:
    """Install a package into an empty environment, run the demo to its end, and return a line about it."""
    with tempfile.TemporaryDirectory(prefix="slimilar-package-") as name:
        folder = Path(name)
        (folder / "constraints.txt").write_text(_torch(), encoding="utf-8")
        timed([interpreter, "-m", "venv", "venv"], folder)
        python = folder / "venv" / "bin" / "python"
        pip: list[str | Path] = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        install = timed([*pip, "-c", "constraints.txt", package], folder)
        demo = timed([python.parent / "slimilar", "demo", "--quiet"], folder)
        missing = [
            f for f in ("report.html", "model.safetensors") if not (folder / "slimilar-demo" / f).exists()
        ]
        if missing:
            raise SystemExit(f"the demo of {package.name} must write {', '.join(missing)}, but did not")
        told = subprocess.run(
            [str(python), "-c", VERSIONS], check=True, capture_output=True, text=True
        ).stdout
    number, *used = json.loads(told)
    kind = "wheel" if package.suffix == ".whl" else "sdist"
    return f"{number:<9} {kind:<6} {install:9.0f} {demo:7.0f}   " + ", ".join(
        map(" ".join, zip(NAMES, used, strict=True))
    )


def _torch() -> str:
    pinned = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return next(line for line in pinned if line.startswith("torch==")) + "\n"


def main() -> None:
    """Check every package with every interpreter; write the record if all pass."""
    interpreters = os.environ.get("PYTHONS", "").split() or [sys.executable]
    packages = build(ROOT / "dist")
    lines = [f"{'python':<9} {'file':<6} {'install s':>9} {'demo s':>7}   installed"]
    print(lines[0], flush=True)
    for interpreter in interpreters:
        for package in packages:
            lines.append(check(interpreter, package))
            print(lines[-1], flush=True)
    write_text(RESULTS / "package.txt", "\n".join([header("make package", 0), "", *lines, ""]))


if __name__ == "__main__":
    main()
