"""From what the user typed to a model with weights and an input that it takes."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slimilar.errors import DataError, InvalidInput

if TYPE_CHECKING:
    from torch import nn

    from slimilar.data import Normalisation

_LARGEST = 2**28  # numbers in an example input: a gigabyte


@dataclass(frozen=True, eq=False)
class OpenedModel:
    """A model, what it takes, and how to name it again."""

    model: nn.Module
    shapes: tuple[tuple[int, ...], ...]  # of one input each, without the batch
    source: str | None  # the name of the unpruned model, for a saved file
    command: str  # the model and its options, as on a command line
    normalisation: Normalisation | None

    def example(self, batch: int = 1) -> Any:
        """Return an input for the model: a tensor, or a tuple of them."""
        import torch

        inputs = tuple(torch.zeros(batch, *shape) for shape in self.shapes)
        return inputs[0] if len(inputs) == 1 else inputs

    @property
    def title(self) -> str:
        """A short name for headings."""
        return (self.source or "model").rpartition("/")[2]


def open_model(
    text: str, weights: str | None = None, shapes: Sequence[str] | None = None, base: str | None = None
) -> OpenedModel:
    """Return the model that a user means, with its weights, in evaluation mode."""
    given = tuple(parse_shape(shape) for shape in shapes or ())
    words = [shlex.quote(text)]
    words += ["--weights", shlex.quote(weights)] if weights else []
    words += ["--base", shlex.quote(base)] if base else []
    words += [word for shape in given for word in ("--input", "x".join(map(str, shape)))]
    command = " ".join(words)
    if text.endswith(".onnx"):
        return _from_onnx(text, weights, base, given, command)
    if text.endswith(".safetensors") or Path(text).is_file():
        return _saved(text, base, given, command)
    return _built(text, weights, given, command)


def parse_shape(text: str) -> tuple[int, ...]:
    """Return a shape such as 3x224x224.

    >>> parse_shape("3x32x32")
    (3, 32, 32)
    """
    if not re.fullmatch(r"[0-9]+(x[0-9]+)*", text):
        raise InvalidInput(f"input must be a shape such as 3x224x224, got {text!r}")
    shape = tuple(map(int, text.split("x")))
    if not 0 < math.prod(shape) <= _LARGEST:
        raise InvalidInput(f"input must have from 1 to {_LARGEST} numbers, got {text!r}")
    return shape


def _saved(text: str, base: str | None, given: tuple[tuple[int, ...], ...], command: str) -> OpenedModel:
    from slimilar.deploy.file_format import inspect
    from slimilar.deploy.sources import build, input_shape, parse
    from slimilar.deploy.store import load

    stored = inspect(text)
    source = base or stored.source
    model = load(text, build(parse(base)) if base else None)
    stored_shapes = tuple(tuple(shape[1:]) for shape in stored.info.get("input") or ())
    known = input_shape(parse(source), model) if source and not stored_shapes else None
    shapes = given or stored_shapes or ((known,) if known else ())
    return OpenedModel(model, _known(shapes, text), source, command, _normalisation(source))


def _from_onnx(
    text: str, weights: str | None, base: str | None, given: tuple[tuple[int, ...], ...], command: str
) -> OpenedModel:
    from slimilar.data.images import RAW, Normalisation
    from slimilar.deploy.onnx_files import load_onnx
    from slimilar.deploy.onnx_files.input_range import own_normalisation

    if weights or base:
        option = "--weights" if weights else "--base"
        raise InvalidInput(
            f"{option} is for models without weights of their own, got an ONNX file; leave it out"
        )
    model = load_onnx(text, given or None)
    expected = {"unit": RAW, "bytes": Normalisation((0.0, 0.0, 0.0), (1 / 255, 1 / 255, 1 / 255)), None: None}
    shapes = tuple(i.shape for i in model.source.inputs)
    return OpenedModel(model, shapes, text, command, expected[own_normalisation(model)])


def _built(text: str, weights: str | None, given: tuple[tuple[int, ...], ...], command: str) -> OpenedModel:
    from slimilar.deploy.sources import build, input_shape, parse
    from slimilar.deploy.weights import fill_

    source = parse(text)
    if weights == "default":
        model = _downloaded(text)
    elif source.kind == "slimilar" and source.name.partition("-")[2].startswith(("cifar", "imagenet")):
        model = _published(source.name, weights)
    else:
        model = build(source)
        if weights is not None:
            fill_(model, weights)
    known = input_shape(source, model)
    return OpenedModel(
        model.eval(), _known(given or ((known,) if known else ()), text), text, command, _normalisation(text)
    )


def _known(shapes: tuple[tuple[int, ...], ...], text: str) -> tuple[tuple[int, ...], ...]:
    if not shapes:
        raise InvalidInput(f"the input of {text} is not known: pass its shape, as in --input 3x224x224")
    return shapes


def _published(name: str, weights: str | None) -> nn.Module:
    """Return a published network; its file is found by SLIMILAR_DATA unless one is given."""
    from slimilar.deploy.weights import read
    from slimilar.models import CHECKPOINTS, pretrained
    from slimilar.models.checkpoints import load_state
    from slimilar.utils.suggestions import choose

    entry = CHECKPOINTS[choose(name, list(CHECKPOINTS), "published network")]
    if weights is None:
        return pretrained(name).model
    return load_state(entry.build(), entry.convert(read(weights)))


def _downloaded(text: str) -> Any:
    """Return a library's model with the weights it offers itself."""
    from slimilar.deploy.sources import parse
    from slimilar.utils.torchvision_compat import import_torchvision

    source = parse(text)
    try:
        if source.kind == "torchvision":
            models = import_torchvision("torchvision.models")
            return models.get_model(source.name, weights="DEFAULT", **source.options)
        if source.kind == "timm":
            import_torchvision()
            import timm

            return timm.create_model(source.name, pretrained=True, **source.options)
    except (OSError, RuntimeError, ValueError) as error:
        raise DataError(f"the weights of {text} could not be had: {error}; pass --weights FILE") from error
    raise InvalidInput(f"--weights default is for torchvision: and timm: models, got {text!r}; pass a file")


def _normalisation(text: str | None) -> Normalisation | None:
    """Return what a known network expects of its input; None where the dataset's own has to do."""
    from slimilar.data.folder import IMAGENET
    from slimilar.models import CHECKPOINTS

    kind, _, name = (text or "").partition(":")
    if kind == "slimilar":
        return CHECKPOINTS[name].normalisation if name in CHECKPOINTS else None
    return IMAGENET if kind in ("torchvision", "timm") else None


def parse_layers(layers: Sequence[str] | None) -> dict[str, float]:
    """Return thresholds by layer, out of NAME=T.

    >>> parse_layers(["features.conv1_1=0", "a=b=0.25"])
    {'features.conv1_1': 0.0, 'a=b': 0.25}
    """
    found = {}
    for entry in layers or ():
        name, _, value = entry.rpartition("=")
        try:
            found[name] = float(value)
        except ValueError:
            found[name] = math.nan
        if not name or math.isnan(found[name]):
            raise InvalidInput(f"--layer must look like NAME=0.25, got {entry!r}")
    return found


def folder_for(path: Path) -> Path:
    """Return a folder to write to, or raise at once if it cannot be one."""
    folder = path.expanduser()
    if folder.exists() and not folder.is_dir():
        raise InvalidInput(f"--out must be a folder, but {folder} is a file; choose another name")
    return folder
