"""Build wheel and sdist, install each into an empty environment, run the demo there, and record the outcome.

    make package                                         with the interpreter that builds
    make package PYTHONS="python3.10 ... python3.13"     with these, one after another

Writes benchmarks/results/package.txt as they pass; rows of other versions stay. torch is the one of constraints.txt;
the rest is what pip chooses for a user, or uv, which is faster and is taken where it is installed. The environments are
in a temporary folder outside the checkout.
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

from _results import RESULTS, commit, header

from slimilar.utils.atomic import write_text

ROOT = Path(__file__).parents[1]
NAMES = ("torch", "numpy", "scipy", "typer", "rich")
HEADING = f"{'python':<8} {'file':<6} {'install s':>9} {'demo s':>7}   {'built at':<9} {'with':<5} installed"
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


def check(interpreter: str, package: Path, built: str) -> str:
    """Install a package into an empty environment, run the demo to its end, and return a row about it."""
    with tempfile.TemporaryDirectory(prefix="slimilar-package-") as name:
        folder = Path(name)
        (folder / "constraints.txt").write_text(_torch(), encoding="utf-8")
        python = folder / "venv" / "bin" / "python"
        create, install = _installer(interpreter, python)
        timed(create, folder)
        took = timed([*install, "-c", "constraints.txt", package], folder)
        demo = timed([python.parent / "slimilar", "demo", "--quiet"], folder)
        results = [folder / "slimilar-demo" / file for file in ("report.html", "model.safetensors")]
        if missing := [file.name for file in results if not file.exists()]:
            raise SystemExit(f"the demo of {package.name} must write {', '.join(missing)}, but did not")
        told = subprocess.run(
            [str(python), "-c", VERSIONS], check=True, capture_output=True, text=True
        ).stdout
    number, *used = json.loads(told)
    kind = "wheel" if package.suffix == ".whl" else "sdist"
    installed = ", ".join(f"{name} {version}" for name, version in zip(NAMES, used, strict=True))
    return f"{number:<8} {kind:<6} {took:9.0f} {demo:7.0f}   {built:<9} {_name():<5} {installed}"


def _name() -> str:
    return "uv" if shutil.which("uv") else "pip"


def _installer(interpreter: str, python: Path) -> tuple[list[str | Path], list[str | Path]]:
    """Return the commands that make an empty environment and that install into it."""
    if _name() == "uv":
        install: list[str | Path] = ["uv", "pip", "install", "--quiet", "--python", python]
        return ["uv", "venv", "--quiet", "--python", interpreter, "venv"], install
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    return [interpreter, "-m", "venv", "venv"], install


def record(row: str, heading: str) -> None:
    """Put a row into the file of results, in place of the one of the same version and kind."""
    file = RESULTS / "package.txt"
    known = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    rows = {tuple(line.split()[:2]): line for line in known if line[:1].isdigit()}
    rows[tuple(row.split()[:2])] = row
    in_order = sorted(rows.values(), key=lambda line: [int(n) for n in line.split()[0].split(".")])
    write_text(file, "\n".join([heading, "", HEADING, *in_order, ""]))


def _torch() -> str:
    pinned = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return next(line for line in pinned if line.startswith("torch==")) + "\n"


def main() -> None:
    """Check every package with every interpreter, and record what passes."""
    interpreters = os.environ.get("PYTHONS", "").split() or [sys.executable]
    # Now: the checkout may move on while the demos run.
    built, heading = commit() or "unknown", header("make package", 0)
    packages = build(ROOT / "dist")
    print(HEADING, flush=True)
    for interpreter in interpreters:
        for package in packages:
            row = check(interpreter, package, built.replace(" + changes", "+"))
            print(row, flush=True)
            record(row, heading)


if __name__ == "__main__":
    main()
