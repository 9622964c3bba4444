"""Models built by name, of every kind that `slimilar.deploy.model_names` reads."""

from __future__ import annotations

import importlib.util
import inspect
import re
import sys
from typing import Any

import torch
from torch import nn

from slimilar.deploy.model_names import KNOWN, ModelSource, check_python_file, parse
from slimilar.errors import InvalidInput
from slimilar.utils.suggestions import choose
from slimilar.utils.torchvision_compat import import_timm, import_torchvision

# Options allowed in a stored name: they change sizes, never which code runs.
SIZES = frozenset({"classes", "width", "num_classes", "width_mult", "in_chans"})


def build(source: ModelSource) -> nn.Module:
    """Return the model with fresh weights."""
    builders = {"torchvision": _torchvision, "timm": _timm, "slimilar": _slimilar, "file": _file}
    try:
        model = builders[source.kind](source)
    except InvalidInput:
        raise
    except Exception as error:  # builders raise anything for options that they do not know
        raise InvalidInput(f"{source} could not be built: {type(error).__name__}: {error}") from error
    if not isinstance(model, nn.Module):
        raise InvalidInput(f"{source} must return a torch.nn.Module, got {type(model).__name__}")
    return model


def build_stored(text: str) -> nn.Module:
    """Build a model named in an untrusted file: known kinds and sizes only, on the meta device where possible."""
    source = parse(text)
    if (
        source.kind not in KNOWN
        or not re.fullmatch(r"[\w.-]+", source.name)
        or not set(source.options) <= SIZES
    ):
        raise InvalidInput(f"{text} cannot be built from its name alone; pass the model")
    if not all(isinstance(value, int | float) for value in source.options.values()):
        raise InvalidInput(f"{text} must have numeric options; pass the model")
    try:
        with torch.device("meta"):
            return build(source)
    except InvalidInput:
        if source.options:  # its size is not known
            raise
        return build(source)  # some builders read values of tensors


def input_shape(source: ModelSource, model: nn.Module) -> tuple[int, ...] | None:
    """Return the shape of one input, without the batch axis, if it is known."""
    if source.kind == "slimilar":
        imagenet = source.name.endswith("imagenet")
        return (3, 224, 224) if imagenet else (3, 32, 32)
    if source.kind == "timm":
        config: Any = getattr(model, "default_cfg", None) or {}
        size = config.get("input_size", (3, 224, 224))
        return (int(source.options.get("in_chans", size[0])), int(size[1]), int(size[2]))
    if source.kind == "torchvision":
        return (3, 299, 299) if source.name == "inception_v3" else (3, 224, 224)
    return None


# --- the four kinds -----------------------------------------------------------------------------------------------


def _torchvision(source: ModelSource) -> Any:
    models = import_torchvision("torchvision.models")
    choose(source.name, models.list_models(), "torchvision model")
    skip_init = {"init_weights": False} if source.name in ("googlenet", "inception_v3") else {}
    return models.get_model(source.name, weights=None, **skip_init, **source.options)


def _timm(source: ModelSource) -> Any:
    timm = import_timm()
    choose(source.name.partition(".")[0], timm.list_models(), "timm model")
    return timm.create_model(source.name, pretrained=False, **source.options)


def _slimilar(source: ModelSource) -> Any:
    from slimilar import models

    if source.name == "demo" and not source.options:
        if torch.get_default_device().type == "meta":  # only shapes are needed
            return models.VGG(classes=10, width=models.demo.WIDTH)
        return models.demo_network()
    if source.name in models.CHECKPOINTS and not source.options:
        return models.CHECKPOINTS[source.name].build()
    choose(source.name, [*models.NAMES, *models.CHECKPOINTS, "demo"], "slimilar model")
    return models.build(source.name, **source.options)


def _file(source: ModelSource) -> Any:
    """Run a Python file, as `python file.py` would, and call its function."""
    file, function = check_python_file(source), source.name.rpartition(":")[2]
    spec = importlib.util.spec_from_file_location(f"_slimilar_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    if str(file.parent) not in sys.path:
        sys.path.insert(0, str(file.parent))
    sys.modules[spec.name] = module  # dataclasses look up their module
    spec.loader.exec_module(module)
    found = getattr(module, choose(function, [n for n in vars(module) if not n.startswith("__")], "function"))
    if isinstance(found, nn.Module):
        return found
    _check_callable(source, found)
    return found()


def _check_callable(source: ModelSource, found: Any) -> None:
    """Raise for what cannot be called without arguments."""
    if not callable(found):
        raise InvalidInput(
            f"{source} must be a class or a function that returns the model, got {type(found).__name__}; name another"
        )
    try:
        parameters = inspect.signature(found).parameters.values()
    except (TypeError, ValueError):  # written in C
        return
    optional = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
    needed = [p.name for p in parameters if p.default is p.empty and p.kind not in optional]
    if needed:
        name = source.name.rpartition(":")[2]
        raise InvalidInput(
            f"{source} must be callable without arguments, but needs {', '.join(needed)}; write a function that "
            f"returns {name}(...) with your arguments, and name that"
        )
