"""From what the user typed to a model with weights and an input that it takes."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slimilar.cli.known_names import check_network
from slimilar.deploy.model_names import (
    check_not_weights,
    check_onnx_file,
    check_python_file,
    check_saved_file,
    check_weights_file,
    parse,
)
from slimilar.errors import DataError, InvalidInput

if TYPE_CHECKING:
    from torch import nn

    from slimilar.data import Preprocessing

_LARGEST = 2**28  # numbers in an example input: a gigabyte


@dataclass(frozen=True, eq=False)
class OpenedModel:
    """A model, what it takes, and how to name it again."""

    model: nn.Module
    shapes: tuple[tuple[int, ...], ...]  # of one input each, without the batch
    source: str | None  # the name of the unpruned model, for a saved file
    command: str  # the model and its options, as on a command line
    preprocessing: Preprocessing | None  # None: nothing is known of it
    base: str | None = None  # the Python file that a saved file of this model needs, as in file.py:function
    fitted: int = 0  # how many calibration images its consumers were fitted to when it was pruned

    def example(self, batch: int = 1) -> Any:
        """Return an input for the model: a tensor, or a tuple of them."""
        import torch

        from slimilar.utils.modules import device_of

        dtype = next((p.dtype for p in self.model.parameters() if p.is_floating_point()), torch.float32)
        device = device_of(self.model)
        inputs = tuple(torch.zeros(batch, *shape, device=device, dtype=dtype) for shape in self.shapes)
        return inputs[0] if len(inputs) == 1 else inputs

    def placed(self, device: str, dtype: str | None = None) -> OpenedModel:
        """Return it on a device and in a precision, both by name."""
        from slimilar.utils.devices import device_named, dtype_named

        place = device_named(device)
        return replace(self, model=self.model.to(place, None if dtype is None else dtype_named(dtype, place)))

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the first input."""
        if len(self.shapes[0]) != 3:
            got = "x".join(map(str, self.shapes[0]))
            raise InvalidInput(
                f"images need an input of channels, height and width, such as 3x224x224, got {got}; pass a .npz file "
                "with preprocessed inputs"
            )
        tall, wide = self.shapes[0][:2] if channels_last(self.shapes[0]) else self.shapes[0][1:]
        return tall, wide

    @property
    def channels(self) -> int | None:
        """Channels of the first input; None where it is no image."""
        shape = self.shapes[0]
        return (shape[2] if channels_last(shape) else shape[0]) if len(shape) == 3 else None

    @property
    def title(self) -> str:
        """A short name for headings."""
        return (self.source or "model").rpartition("/")[2]


def open_model(
    text: str, weights: str | None = None, shapes: Sequence[str] | None = None, base: str | None = None
) -> OpenedModel:
    """Return the model that a user means, with its weights, in evaluation mode."""
    check_names([text], weights, base)
    given = tuple(parse_shape(shape) for shape in shapes or ())
    words = [shlex.quote(text)]
    words += ["--weights", shlex.quote(weights)] if weights else []
    words += ["--base", shlex.quote(base)] if base else []
    words += [word for shape in given for word in ("--input", "x".join(map(str, shape)))]
    command = " ".join(words)
    if text.endswith(".onnx"):
        return _from_onnx(text, weights, base, given, command)
    if is_saved(text):
        return _saved(text, weights, base, given, command)
    return _built(text, weights, given, command)


def open_models(
    names: Sequence[str],
    weights: str | None = None,
    shapes: Sequence[str] | None = None,
    base: str | None = None,
) -> dict[str, OpenedModel]:
    """Return several models by name. Weights are for those that are not saved files, or, if there are none, for all."""
    check_names(names, weights, base)
    coded = [name for name in names if not name.endswith(".onnx") and not is_saved(name)]
    named = coded or [name for name in names if not name.endswith(".onnx")]
    return {name: open_model(name, weights if name in named else None, shapes, base) for name in names}


def check_names(names: Sequence[str], weights: str | None = None, base: str | None = None) -> None:
    """Raise for a name that is no model's and for a file that is not there; at once, before torch is imported."""
    for text in names:
        if text.endswith(".onnx"):
            check_onnx_file(text)
        elif is_saved(text):
            check_saved_file(text)
        else:
            _check_coded(text)
    if weights not in (None, "default"):
        check_weights_file(weights)
    if base is not None:
        _check_coded(base)


def _check_coded(text: str) -> None:
    source = parse(text)
    if source.kind == "file":
        check_python_file(source)
    elif source.kind == "slimilar":
        check_network(source.name)


def is_saved(text: str) -> bool:
    """Tell whether a model is named by a saved file."""
    check_not_weights(text)
    return text.endswith(".safetensors") or (Path(text).is_file() and not text.endswith(".py"))


def channels_last(shape: tuple[int, ...]) -> bool:
    """Tell whether a model takes its channels last, as those from TensorFlow do."""
    return len(shape) == 3 and shape[0] not in (1, 3) and shape[2] in (1, 3)


def parse_shape(text: str) -> tuple[int, ...]:
    """Return a shape such as 3x224x224.

    >>> parse_shape("3x32x32")
    (3, 32, 32)
    """
    if not re.fullmatch(r"[0-9]+(x[0-9]+)*", text):
        raise InvalidInput(f"input must be a shape such as 3x224x224, got {text!r}")
    shape = tuple(map(int, text.split("x")))
    if not 0 < math.prod(shape) <= _LARGEST:
        raise InvalidInput(f"input must have 1 to {_LARGEST} numbers, got {text!r}")
    return shape


def _saved(
    text: str, weights: str | None, base: str | None, given: tuple[tuple[int, ...], ...], command: str
) -> OpenedModel:
    from slimilar.deploy.file_format import inspect
    from slimilar.deploy.sources import build, input_shape
    from slimilar.deploy.store import load
    from slimilar.deploy.weights import fill_

    stored = inspect(text)
    source = base or stored.source
    model = load(text, build(parse(base)) if base else None)
    if weights is not None:
        fill_(model, weights)
    stored_shapes = tuple(tuple(shape[1:]) for shape in stored.info.get("input") or ())
    known = input_shape(parse(source), model) if source and not stored_shapes else None
    shapes = _known(given or stored_shapes or ((known,) if known else ()), text)
    known_way = stored.preprocessing or _preprocessing(source, model, shapes, None)
    return OpenedModel(
        model,
        shapes,
        source,
        command,
        _fitting(known_way, shapes),
        _own_file(source),
        _fitted_images(stored.info),
    )


def _fitted_images(info: Mapping[str, Any]) -> int:
    """Return how many images a saved model was fitted to; after fine-tuning, the note says so."""
    note = info.get("note")
    found = info.get("fitted images", note.get("fitted images") if isinstance(note, dict) else None)
    return found if isinstance(found, int) else 0


def _from_onnx(
    text: str, weights: str | None, base: str | None, given: tuple[tuple[int, ...], ...], command: str
) -> OpenedModel:
    from slimilar.data import Preprocessing
    from slimilar.data.images import RAW, Normalisation
    from slimilar.deploy.onnx_files import load_onnx
    from slimilar.deploy.onnx_files.input_range import own_normalisation

    if weights or base:
        option = "--weights" if weights else "--base"
        raise InvalidInput(
            f"{option} does not apply to an ONNX file, which contains its weights; leave it out"
        )
    model = load_onnx(text, given or None)
    expected = {"unit": RAW, "bytes": Normalisation((0.0, 0.0, 0.0), (1 / 255, 1 / 255, 1 / 255)), None: None}
    shapes = tuple(i.shape for i in model.source.inputs)
    own = expected[own_normalisation(model)]
    size = shapes[0][:2] if channels_last(shapes[0]) else shapes[0][1:]
    way = None if own is None or len(size) != 2 else Preprocessing.of((size[0], size[1]), normalisation=own)
    return OpenedModel(model, shapes, text, command, way)


def _built(text: str, weights: str | None, given: tuple[tuple[int, ...], ...], command: str) -> OpenedModel:
    from slimilar.deploy.sources import build, input_shape
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
    shapes = _known(given or ((known,) if known else ()), text)
    return OpenedModel(
        model.eval(), shapes, text, command, _preprocessing(text, model, shapes, weights), _own_file(text)
    )


def has_random_weights(text: str) -> bool:
    """Tell whether a model that is built without a file of weights has those of a random initialisation."""
    import torch

    from slimilar.deploy.sources import build

    if is_saved(text):
        return False
    source = parse(text)
    if source.kind == "slimilar" and source.name.partition("-")[2].startswith(("cifar", "imagenet")):
        return False
    first, second = (build(source).state_dict() for _ in range(2))
    return any(not torch.equal(tensor, second[name]) for name, tensor in first.items())


def original_with_weights(opened: OpenedModel) -> str | None:
    """Return the name of the model that a fitted one was pruned from, if that name brings its trained weights."""
    if not opened.fitted or not opened.source or opened.source.endswith(".onnx"):
        return None
    if parse(opened.source).kind != "slimilar" or has_random_weights(opened.source):
        return None
    try:
        _built(opened.source, None, opened.shapes, "")
    except DataError:  # the file of a published network is not here
        return None
    return opened.source


def _own_file(source: str | None) -> str | None:
    """Return the name of a model that lives in a Python file of the user."""
    return source if source and not source.endswith(".onnx") and parse(source).kind == "file" else None


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
    from slimilar.utils.hub import skip_retries_offline
    from slimilar.utils.torchvision_compat import import_torchvision

    source = parse(text)
    try:
        if source.kind == "torchvision":
            models = import_torchvision("torchvision.models")
            return models.get_model(source.name, weights="DEFAULT", **source.options)
        if source.kind == "timm":
            import_torchvision()
            skip_retries_offline()
            import timm

            return timm.create_model(source.name, pretrained=True, **source.options)
    except (OSError, RuntimeError, ValueError) as error:
        reason = str(error).rstrip(".")
        raise DataError(
            f"the weights of {text} could not be downloaded: {reason}; pass --weights FILE"
        ) from error
    raise InvalidInput(f"--weights default is for torchvision: and timm: models, got {text!r}; pass a file")


def _preprocessing(
    text: str | None, model: nn.Module, shapes: tuple[tuple[int, ...], ...], weights: str | None
) -> Preprocessing | None:
    """Return what is known of a model's preprocessing; None where the dataset's own has to do."""
    from slimilar.data import Preprocessing
    from slimilar.deploy.preprocessing import published_preprocessing
    from slimilar.models import CHECKPOINTS

    if text is None or len(shapes[0]) != 3:
        return None
    source, size = parse(text), (shapes[0][1], shapes[0][2])
    if source.kind == "slimilar" and source.name in CHECKPOINTS:
        return Preprocessing.of(size, normalisation=CHECKPOINTS[source.name].normalisation)
    return published_preprocessing(source, model, size, weights)


def _fitting(found: Preprocessing | None, shapes: tuple[tuple[int, ...], ...]) -> Preprocessing | None:
    """Return a stored preprocessing for an input of another size, if `--input` gave one."""
    from slimilar.data import Preprocessing

    if found is None or len(shapes[0]) != 3 or found.size == shapes[0][1:]:
        return found
    size = (shapes[0][1], shapes[0][2])
    return Preprocessing.of(
        size, normalisation=found.normalisation, interpolation=found.interpolation, grey=found.grey
    )
