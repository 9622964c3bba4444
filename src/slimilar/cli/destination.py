"""Where a command writes: checked before any work is done."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path

from slimilar.errors import InvalidInput

# Endings of model files. A folder called small.pt would be taken for a file, and is never meant.
_MODELS = frozenset(
    (".pt", ".pth", ".pt2", ".ts", ".ckpt", ".bin", ".safetensors", ".onnx", ".tflite", ".engine", ".xml")
)


def folder_for(path: Path, files: Iterable[str] = (), force: bool = True) -> Path:
    """Return a folder that can be written to; raise if it already holds one of the files, unless forced."""
    folder = path.expanduser()
    if folder.suffix.lower() in _MODELS and not folder.is_dir():
        raise InvalidInput(
            f"--out must be a folder, got {path}, which is the name of a file; pass a name without {folder.suffix}, "
            f"such as {path.with_suffix('')}"
        )
    if folder.exists() and not folder.is_dir():
        raise InvalidInput(f"--out must be a folder, but {folder} is a file; choose another name")
    present = [name for name in files if (folder / name).exists()]
    if present and not force:
        raise InvalidInput(
            f"--out must be a new folder, but {folder} already holds {present[0]}; choose another, or pass --force to "
            "replace it"
        )
    _try_to_write(folder)
    return folder


def file_for(path: Path, option: str = "--out", force: bool = True) -> Path:
    """Return a file that can be written; raise if it is there already, unless forced."""
    file = path.expanduser()
    if file.is_dir():
        raise InvalidInput(
            f"{option} must be a file, but {file} is a folder; name a file in it, such as {file / 'result'}"
        )
    if file.exists() and not force:
        raise InvalidInput(
            f"{option} must be a new file, but {file} is there already; choose another, or pass --force to replace it"
        )
    _try_to_write(file.parent, option)
    return file


def _try_to_write(folder: Path, option: str = "--out") -> None:
    """Make a file in the folder, or in the nearest one that is there, so that no work is lost in the end."""
    try:
        present = next(place for place in (folder, *folder.absolute().parents) if place.exists())
        with tempfile.TemporaryFile(dir=present):
            pass
    except OSError as error:
        reason = error.strerror or error
        raise InvalidInput(
            f"{option} must name a place that can be written to, but {folder} cannot: {reason}; choose another"
        ) from error
