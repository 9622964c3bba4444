"""Count the filters of architectures that may leave, with whichever version of the package is on the path.

Reads an architecture a line from standard input and answers with a line of JSON. Run by `newly_prunable.py`, by its
path, for two versions whose modules have different names.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections import Counter
from importlib import import_module
from typing import Any

import torch
from torch import nn


def _first(*places: tuple[str, str]) -> Any:
    """Return the first of some functions that this version has."""
    for module, name in places:
        try:
            return getattr(import_module(module), name)
        except ImportError:
            continue
    raise ImportError(f"none of {places} is there")


def _built(entry: dict[str, Any]) -> nn.Module:
    torchvision = _first(
        ("slimilar.utils.torchvision_compat", "import_torchvision"), ("slimilar._torchvision", "import_torchvision")
    )  # fmt: skip
    models = torchvision("torchvision.models")
    if entry["library"] == "timm":
        return import_module("timm").create_model(entry["name"])  # type: ignore[no-any-return]
    if entry["library"] != "torchvision" or entry["kind"] == "detection":
        raise ValueError("not compared")
    options = {"weights_backbone": None} if entry["kind"] == "segmentation" else {}
    return models.get_model(entry["name"], weights=None, **options)  # type: ignore[no-any-return]


def _example(entry: dict[str, Any]) -> Any:
    image = torch.zeros(2, 3, entry["sizes"][-1], entry["sizes"][-1])
    if entry["kind"] == "video":
        return image[:1].unsqueeze(2).repeat(1, 1, 16, 1, 1)
    return (image[:1], image[1:]) if entry["kind"] == "optical_flow" else image


def filters(entry: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the filters of every module, those that may leave, and why others stay."""
    find = _first(("slimilar.surgery.probe", "find_structure"), ("slimilar.probe", "find_structure"))
    model = _built(entry).eval()
    grouping = find(model, _example(entry), "joint").grouping
    free: Counter[str] = Counter()
    weights = dict(model.named_parameters())
    for group in grouping.groups:
        for member in group.members:
            weight = weights.get(member.tensor)
            if member.axis == 0 and weight is not None and weight.ndim > 1:
                free[_module(member.tensor)] += sum(
                    int(u) >= 0 and int(u) not in group.fixed for u in member.units
                )
    all_of: Counter[str] = Counter()
    for name, weight in weights.items():
        if weight.ndim > 1:
            all_of[_module(name)] += weight.shape[0]
    return {
        "filters": dict(all_of),
        "free": dict(free),
        "frozen": {f.name: f.reason for f in grouping.frozen},
    }


def _module(tensor: str) -> str:
    return tensor.rpartition(".")[0]


def main() -> None:
    """Answer until standard input ends."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # models print; the answers must stay readable
    for line in sys.stdin:
        try:
            row: dict[str, Any] = dict(filters(json.loads(line)))
        except Exception as error:
            row = {"error": f"{type(error).__name__}: {error}"[:300]}
        answers.write(json.dumps(row) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
