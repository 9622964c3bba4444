"""Published checkpoints and the networks they belong to.

The weights are not part of the package. A checkpoint is ``<name>.safetensors`` in the folder
that is passed, or in the one that the environment variable SLIMILAR_DATA names.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from slimilar.data.images import RAW, Normalisation
from slimilar.data.preprocessing import IMAGENET
from slimilar.errors import DataError, InvalidInput, Option
from slimilar.models.resnet import ResNet
from slimilar.models.vgg import STAGES, VGG
from slimilar.utils.suggestions import choose
from slimilar.utils.torchvision_compat import import_timm, import_torchvision

State = dict[str, Tensor]


@dataclass(frozen=True)
class Checkpoint:
    """How to build the network of a file, rename its weights and normalise its input; its published accuracy."""

    build: Callable[[], nn.Module]
    normalisation: Normalisation
    dataset: str
    accuracy: float
    convert: Callable[[State], State] = dict


@dataclass(frozen=True, eq=False)
class Pretrained:
    """A trained network, in evaluation mode, and what its input must look like."""

    model: nn.Module
    normalisation: Normalisation
    dataset: str


def pretrained(name: str, folder: str | Path | None = None) -> Pretrained:
    """Return the network of a published checkpoint; ``CHECKPOINTS`` lists the names."""
    name = choose(name, list(CHECKPOINTS), "checkpoint")
    place = folder if folder is not None else os.environ.get("SLIMILAR_DATA")
    if not place:
        raise DataError(
            f"the file of {name} was not found: set SLIMILAR_DATA to its folder, or pass ",
            Option("weights", "FILE", "folder="),
        )
    entry = CHECKPOINTS[name]
    state = entry.convert(_read(Path(place).expanduser() / f"{name}.safetensors"))
    return Pretrained(load_state(entry.build(), state).eval(), entry.normalisation, entry.dataset)


def load_state(model: nn.Module, state: State) -> nn.Module:
    """Fill a network and return it; step counters of batch norms, which some files leave out, stay zero."""
    wanted = {n for n in model.state_dict() if n in state or not n.endswith("num_batches_tracked")}
    missing, unknown = sorted(wanted - state.keys()), sorted(state.keys() - wanted)
    if missing or unknown:
        what = f"{missing[0]} is missing" if missing else f"{unknown[0]} is unknown"
        raise InvalidInput(f"weights must fit the network, but {what}; was it another architecture?")
    try:
        model.load_state_dict(state, strict=False)
    except RuntimeError as error:
        raise InvalidInput(f"weights must fit the network, but {error}; was it another width?") from None
    return model


def half_precision(model: nn.Module) -> State:
    """Return the weights of a network with kernels in half precision, without the step counters of batch norms."""
    return {
        name: (tensor.half() if tensor.ndim > 1 else tensor).contiguous()
        for name, tensor in model.state_dict().items()
        if not name.endswith("num_batches_tracked")
    }


def single_precision(state: State) -> State:
    """Return weights in float32, as `half_precision` found them but for rounding."""
    return {name: t.float() if t.is_floating_point() else t for name, t in state.items()}


def _read(file: Path) -> State:
    try:
        return load_file(file)
    except (OSError, SafetensorError) as error:
        raise DataError(
            f"{file} must be a complete safetensors file, but reading it failed ({error})"
        ) from None


def renamed(rules: dict[str, str], state: State) -> State:
    """Return a state with each name put through regular expressions, first to last.

    >>> list(renamed({"^fc": "linear"}, {"fc.bias": Tensor()}))
    ['linear.bias']
    """
    names = {}
    for name, tensor in state.items():
        for pattern, replacement in rules.items():
            name = re.sub(pattern, replacement, name)
        names[name] = tensor
    return names


def _vgg_names(state: State) -> State:
    layers = [f"{stage}_{i}" for stage, widths in enumerate(STAGES, 1) for i in range(1, len(widths) + 1)]
    rules = {rf"^features\.{4 * k}\.": f"features.conv{layer}." for k, layer in enumerate(layers)}
    rules |= {rf"^features\.{4 * k + 1}\.": f"features.bn{layer}." for k, layer in enumerate(layers)}
    return renamed(rules, state)


def caffe_resnet50() -> Any:
    """Return torchvision's ResNet-50 in its first form: stride on the first 1x1 convolution, eps 1e-3."""
    model = import_torchvision("torchvision.models").resnet50()
    for stage in (model.layer2, model.layer3, model.layer4):
        stage[0].conv1.stride, stage[0].conv2.stride = (2, 2), (1, 1)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eps = 1e-3
    return model


def _blue_green_red(state: State) -> State:
    """Reverse the input channels of the first convolution, from blue, green, red to red, green, blue."""
    return {**state, "conv1.weight": state["conv1.weight"].flip(1)}


def _mobilenet_v2() -> Any:
    return import_torchvision("torchvision.models").mobilenet_v2()


def _efficientnet_lite0() -> Any:
    """Return timm's EfficientNet-Lite0: inverted residuals with ReLU6, padded as TensorFlow does."""
    return import_timm().create_model("tf_efficientnet_lite0")


_CIFAR100 = Normalisation((0.5070, 0.4865, 0.4409), (0.2673, 0.2564, 0.2761))
_LITE = Normalisation((127 / 255,) * 3, (128 / 255,) * 3)
_CAFFE = Normalisation((123.68 / 255, 116.779 / 255, 103.939 / 255), (1 / 255, 1 / 255, 1 / 255))

CHECKPOINTS = {
    "vgg16-cifar10": Checkpoint(
        partial(VGG, bias=True, hidden=512, dropout=0.5), RAW, "cifar10", 0.9225, _vgg_names
    ),
    "resnet20-cifar10": Checkpoint(partial(ResNet, 20), IMAGENET, "cifar10", 0.9173),
    "resnet56-cifar10": Checkpoint(partial(ResNet, 56), IMAGENET, "cifar10", 0.9339),
    "resnet56b-cifar10": Checkpoint(partial(ResNet, 56, shortcut="conv"), RAW, "cifar10", 0.9320),
    "resnet56-cifar100": Checkpoint(
        partial(ResNet, 56, 100, shortcut="conv"),
        _CIFAR100,
        "cifar100",
        0.7263,
        partial(renamed, {"downsample": "shortcut", r"^fc\.": "linear."}),
    ),
    "resnet50-imagenet": Checkpoint(caffe_resnet50, _CAFFE, "imagenet", 0.747, _blue_green_red),
    "mobilenetv2-imagenet": Checkpoint(_mobilenet_v2, IMAGENET, "imagenet", 0.7188),
    "efficientnet-lite0-imagenet": Checkpoint(_efficientnet_lite0, _LITE, "imagenet", 0.751),
}
