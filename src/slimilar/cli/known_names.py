"""The names that options take, so that a slip is answered at once.

The library knows them too, but importing it takes seconds. A test compares these lists with the library's.
"""

from __future__ import annotations

from slimilar.errors import InvalidInput, Option
from slimilar.utils.suggestions import choose

RESIDUALS = ("inner", "select", "joint", "auto")
LINKAGES = ("average", "complete", "single")
RECONSTRUCTIONS = ("auto", "none", "merge", "mean", "gaussian", "least-squares", "linear")
RUNTIMES = ("pytorch", "compile", "onnxruntime", "openvino", "tensorrt")
DTYPES = ("float32", "float64", "float16", "bfloat16")
AMP = ("auto", "off", "float16", "bfloat16")
RECIPES = (
    "paper-resnet",
    "paper-vgg",
    "paper-imagenet",
    "base",
    "base-imagenet",
    "one-cycle",
    "quick",
    "reconstructed",
)
CRITERIA = (
    "similarity",
    "span",
    "slimming",
    "structured-sparsity",
    "duplicates",
    "geometric-median",
    "thinet",
    "channel-lasso",
    "soft",
    "magnitude-l1",
    "magnitude-l2",
    "bn-scale",
    "random",
    "taylor",
    "similarity-active",
    "similarity-filters",
    "similarity-images",
    "similarity-consumers",
)
FORMER_CRITERIA = ("similarity-pictures", "similarity-readers")
_DEPTHS = (20, 32, 44, 56, 110)
NETWORKS = (
    "vgg16",
    "preresnet110",
    "preresnet164",
    *(f"resnet{depth}" for depth in _DEPTHS),
    *(f"resnet{depth}-conv" for depth in _DEPTHS),
    "vgg16-cifar10",
    "resnet20-cifar10",
    "resnet56-cifar10",
    "resnet56b-cifar10",
    "resnet56-cifar100",
    "resnet50-imagenet",
    "mobilenetv2-imagenet",
    "efficientnet-lite0-imagenet",
    "demo",
)


def check_one_of(option: str, value: str, known: tuple[str, ...]) -> None:
    """Raise unless an option has one of its few values."""
    if value not in known:
        raise InvalidInput(Option(option), f" must be one of {', '.join(known)}, got {value!r}")


def check_network(name: str) -> None:
    """Raise unless a network of Slimilar has this name."""
    choose(name, NETWORKS, "slimilar model")


def check_recipe(name: str) -> None:
    """Raise unless a recipe has this name; "auto" is left to the model."""
    choose(name, ("auto", *RECIPES), "recipe")


def check_criterion(name: str, *sources: str | None) -> None:
    """Raise unless a criterion has this name; a Python file among the sources may enter one of its own."""
    if not any(".py:" in source for source in sources if source):
        choose(name, (*CRITERIA, *FORMER_CRITERIA, "auto"), "criterion")
