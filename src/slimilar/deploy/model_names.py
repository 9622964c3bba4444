"""What users call a model, and the files they name beside it: read and checked before anything heavy is imported.

`torchvision:resnet50`, `timm:resnet50`, `slimilar:vgg16`, `path/file.py:function`. Options follow the name:
`slimilar:vgg16,classes=100,width=0.5`. The first three kinds are *known*: they are built from the name alone, without
running code of the user, so a saved file may refer to them. `slimilar.deploy.sources` builds them.
"""

from __future__ import annotations

import ast
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slimilar.errors import DataError, InvalidInput, StoreError
from slimilar.utils.suggestions import choose
from slimilar.utils.wording import listed

KNOWN = ("torchvision", "timm", "slimilar")


@dataclass(frozen=True)
class ModelSource:
    """The origin of a model: a library (or "file"), its name there, and options for its builder."""

    kind: str
    name: str
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        if self.kind == "file":
            return self.name
        return ",".join([f"{self.kind}:{self.name}", *(f"{k}={v}" for k, v in self.options.items())])


def parse(text: str) -> ModelSource:
    """Parse the name of a model.

    >>> parse("slimilar:vgg16,classes=100,width=0.5").options
    {'classes': 100, 'width': 0.5}
    """
    kind, _, rest = text.partition(":")
    if kind in KNOWN:
        name, *options = rest.split(",")
        return ModelSource(kind, name, dict(_option(text, option) for option in options))
    file, _, function = text.rpartition(":")
    if file.endswith(".py") and function.isidentifier():
        return ModelSource("file", text)
    if text.endswith(".py"):
        raise InvalidInput(
            f"a Python file must be followed by the class or function to call, got {text!r}{_inside(text)}"
        )
    raise InvalidInput(
        "a model must be given as torchvision:NAME, timm:NAME, slimilar:NAME, a saved .safetensors file, "
        f"an .onnx file, or path/file.py:function, got {text!r}{_saved_in(text) or _known(text)}"
    )


def _saved_in(text: str) -> str:
    """Return a hint: the saved model in a folder, which `slimilar prune` wrote."""
    file = Path(text).expanduser() / "model.safetensors"
    return f"; did you mean {file}?" if file.is_file() else ""


def _known(text: str) -> str:
    """Return a hint: an architecture without its library."""
    plain = text.isidentifier() and not Path(text).exists()
    return f"; did you mean torchvision:{text} or timm:{text}?" if plain else ""


def _inside(text: str) -> str:
    """Return a hint: the classes and functions of a Python file, which is read, not run."""
    try:
        names = _defined(Path(text).expanduser().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ""
    public = [f"{text}:{name}" for name in names if not name.startswith("_")]
    return f"; did you mean {listed(public, most=5).replace(' and ', ' or ')}?" if public else ""


def _defined(text: str) -> list[str]:
    """Return the classes and functions of a Python file."""
    try:
        tree = ast.parse(text)
    except (ValueError, SyntaxError):
        return []
    return [node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)]


def check_not_weights(text: str) -> None:
    """Refuse a file of weights in place of a model."""
    if Path(text).suffix in (".pt", ".pth", ".ckpt", ".bin", ".pkl"):
        raise InvalidInput(
            f"a model must be given by its code, got the file {text!r}; name the class and pass this file as weights: "
            f"path/file.py:MyNetwork --weights {text}"
        )


def _option(text: str, option: str) -> tuple[str, Any]:
    name, equals, value = option.partition("=")
    if not equals or not name.isidentifier():
        raise InvalidInput(f"options of a model must look like width=0.5, got {option!r} in {text!r}")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return name, value


def check_python_file(source: ModelSource) -> Path:
    """Return the Python file of a model; raise where it is not there, or cannot hold the name."""
    path, _, function = source.name.rpartition(":")
    file = Path(path).expanduser().resolve()
    if not file.is_file():
        raise InvalidInput(f"{path} must be a Python file, but there is no such file; check the path")
    text = file.read_text(encoding="utf-8", errors="replace")
    # Whether it does hold the name is known after it has run; a name that is nowhere in the text is a slip.
    if not re.search(rf"\b{function}\b|import \*|globals|exec|__getattr__", text) and (
        names := _defined(text)
    ):
        choose(function, names, "function")
    return file


def check_weights_file(path: str | os.PathLike[str]) -> Path:
    """Return a file of weights; raise where it is not there."""
    file = Path(path).expanduser()
    if file.is_dir():
        raise DataError(f"{file} must be a file of weights, but is a folder; name the file in it")
    if not file.is_file():
        raise DataError(f"{file} must be a file of weights, but there is no such file; check the path")
    return file


def check_saved_file(path: str | os.PathLike[str]) -> Path:
    """Return a saved model; raise where it is not there."""
    file = Path(path).expanduser()
    if file.is_dir():
        raise StoreError(
            f"{file} must be a saved model, but is a folder; name the file in it, as in {file / 'model.safetensors'}"
        )
    if not file.is_file():  # reading a pipe would block
        raise StoreError(f"{file} must be a saved model, but there is no such file; check the path")
    return file


def check_onnx_file(path: str | os.PathLike[str]) -> Path:
    """Return an ONNX file; raise where it is not there."""
    file = Path(path).expanduser()
    if not file.is_file():  # a pipe would be waited for
        found = "is a folder" if file.is_dir() else "there is no such file"
        raise InvalidInput(f"{file} must be an ONNX file, but {found}; check the path")
    return file
