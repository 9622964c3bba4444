"""Prune an architecture with a few images to calibrate on; the reconstructed model is verified."""

from __future__ import annotations

import time
import warnings
from typing import Any

import torch
from torch import nn

from _zoo.target import to_target
from slimilar import analyze
from slimilar.errors import SlimilarWarning
from slimilar.pipeline import apply
from slimilar.planning.cut import Cut
from slimilar.planning.plan import Plan
from slimilar.reconstruction.apply import reconstructed_model, settle
from slimilar.reconstruction.least_squares import Settings
from slimilar.reconstruction.verify import verify_reconstruction
from slimilar.utils.pytree import map_tensors, tensors_in

IMAGES = 8
PATCHES_UP_TO = (
    2_000_000  # parameters: whole kernels are fitted by `apply`, those of larger networks channel by channel
)
_QUICK = Settings(form="mix", steps=1, mirror=False, choose="none")


def prune_calibrated(model: nn.Module, example: Any) -> tuple[dict[str, Any], nn.Module | None]:
    """Return a row and the pruned model; None if nothing may leave. The example has one image."""
    single = map_tensors(lambda t: t[:1], example)
    shape, generator = next(tensors_in(single)).shape, torch.Generator().manual_seed(2)
    images: Any = tuple(torch.randn(IMAGES, *t.shape[1:], generator=generator) for t in tensors_in(single))
    images = images if len(images) > 1 else images[0]
    began = time.process_time()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", SlimilarWarning)
        row, small = _pruned(model, single, images)
    row |= {"size": list(shape), "images": IMAGES, "seconds_prune": time.process_time() - began}
    row["warned"] = sorted({str(w.message)[:300] for w in said if w.category is SlimilarWarning})
    return row, small


def _pruned(model: nn.Module, example: Any, images: Any) -> tuple[dict[str, Any], nn.Module | None]:
    """Prune inner channels, or those of streams too where there are no others."""
    for mode in ("inner", "joint"):
        plan = analyze(model, example, residual=mode, calibration=images)
        if plan.groups:
            return _applied(model, example, plan, to_target(plan), images)
    return {"status": "nothing to prune"}, None


def _applied(
    model: nn.Module, example: Any, plan: Plan, cut: Cut, images: Any
) -> tuple[dict[str, Any], nn.Module]:
    method = settle("auto", model, example, plan)
    row: dict[str, Any] = {"flops_left": cut.flops / cut.before.flops, "form": "patch"}
    if method == "none" or sum(p.numel() for p in model.parameters()) <= PATCHES_UP_TO:
        result = apply(model, example, plan, cut, reconstruction=method, calibration=images)
        small, error = result.model, result.error
    else:
        made = reconstructed_model(model, example, plan, cut, method, images, 0, None, _QUICK)
        small, row["form"] = made.model, "mix"
        error = verify_reconstruction(made.program, plan.structure.grouping, made.network, small, example)
    exact = error is not None and error < 1e-4
    return row | {"method": str(method), "error": error, "status": "pass" if exact else "wrong"}, small
