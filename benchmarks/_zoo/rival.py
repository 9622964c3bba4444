"""The same architectures with Torch-Pruning, in the way its own README and tests use it."""

from __future__ import annotations

import copy
import math
import time
from typing import Any

import torch
from torch import nn

from _zoo import oracle
from _zoo.catalogue import Architecture
from slimilar.utils.pytree import arguments, tensors_in

RATIO = 0.3  # of every layer's channels: about half of the FLOPs


def rival(entry: Architecture) -> dict[str, Any]:
    """Build its graph, prune a third of every layer, and hold the result against the masked original."""
    from _zoo.worker import prepared

    model, example = prepared(entry)
    small = copy.deepcopy(model)
    before = sum(p.numel() for p in model.parameters())
    began = time.process_time()
    prune(small, example)
    row: dict[str, Any] = {"seconds_prune": time.process_time() - began}
    row["params_left"] = sum(p.numel() for p in small.parameters()) / before
    if row["params_left"] == 1:
        return row | {"status": "nothing removed"}
    row["oracle"] = oracle.difference(oracle.masked(model, small), small.eval(), example)
    # its user names the layers that write outputs; here they are guessed by width, and the guess may miss one
    if math.isinf(row["oracle"]):
        return row | {"status": "narrows an output"}
    right = row["oracle"] < 1e-4
    return row | {"status": "pass" if right else "differs by its norms" if _mixes(model) else "wrong"}


def prune(model: nn.Module, example: Any) -> None:
    """Prune in place, keeping what writes the model's output."""
    import torch_pruning

    args, _ = arguments(example)
    with torch.no_grad():
        outs = [t.shape for t in tensors_in(model(*args)) if t.ndim > 1]
    wide = {shape[1] for shape in outs} | {shape[-1] for shape in outs}
    kept: list[nn.Module] = [
        m for m in model.modules() if isinstance(m, nn.Linear) and m.out_features in wide
    ]
    kept += [m for m in model.modules() if isinstance(m, nn.modules.conv._ConvNd) and m.out_channels in wide]
    pruner = torch_pruning.pruner.MagnitudePruner(
        model, example, importance=torch_pruning.importance.MagnitudeImportance(p=2), pruning_ratio=RATIO,
        ignored_layers=kept[-len(outs) :] if not isinstance(model, nn.Linear) else [],
    )  # fmt: skip
    pruner.step()


def _mixes(model: nn.Module) -> bool:
    """Tell whether a norm over channels is in the model: there a masked network is not what the rival targets at."""
    kinds = (nn.LayerNorm, nn.GroupNorm, nn.MultiheadAttention)
    return any(isinstance(m, kinds) or "attn" in name.split(".") for name, m in model.named_modules())
