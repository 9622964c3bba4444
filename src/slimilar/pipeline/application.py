"""apply(): the one route from a plan to a model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from warnings import warn

import torch
from torch import nn

from slimilar.calibration.calibration_set import Progress, calibration_set, with_smaller_batches
from slimilar.deploy.latency import cut_for_latency
from slimilar.deploy.rounding_measurement import with_measured_rounding
from slimilar.deploy.runtimes import Runtime
from slimilar.errors import SlimilarWarning
from slimilar.graph.structure import Structure
from slimilar.pipeline.checks import check_inputs
from slimilar.planning.assemble import nothing_to_prune
from slimilar.planning.cost import Cost, cost_model, count
from slimilar.planning.cut import Cut
from slimilar.planning.latency import MeasuredLatency
from slimilar.planning.plan import Plan
from slimilar.planning.target import PruningTarget
from slimilar.reconstruction.apply import (
    SUBSTITUTES,
    ReconstructedModel,
    bias_cost,
    reconstructed_model,
    settle,
)
from slimilar.reconstruction.methods import Reconstruction, reconstruction_method
from slimilar.reconstruction.verify import verify_reconstruction
from slimilar.result import Result
from slimilar.surgery.fault import verify_behind_zeros, verify_rewrite
from slimilar.surgery.history import remember
from slimilar.surgery.rewrite import operate, surgery
from slimilar.utils.devices import peak_memory
from slimilar.utils.modules import device_of
from slimilar.utils.pytree import Example
from slimilar.utils.suggestions import choose


@torch.inference_mode(mode=False)
def apply(
    model: nn.Module,
    example: Example,
    plan: Plan,
    target: PruningTarget | Cut,
    *,
    reconstruction: str = "auto",
    calibration: Any = None,
    runtime: str | Runtime = "pytorch",
    verify: bool = True,
    seed: int = 0,
    progress: Progress | None = None,
    substitute: str | None = None,
) -> Result:
    """Return a NEW, smaller model for a plan and a target or cut. A plan can be applied many times.

    The returned model meets the target, including the biases that reconstruction adds. A cut of `plan.at` is applied
    unchanged. `calibration` is used for reconstruction, `runtime` for latency targets. `substitute` is the earlier
    name of `reconstruction`.

    >>> import torch
    >>> from slimilar import PruningTarget, analyze
    >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3))
    >>> _ = nn.init.normal_(net[1].weight), nn.init.normal_(net[1].bias)
    >>> example = torch.zeros(1, 3, 8, 8)
    >>> plan = analyze(net, example)
    >>> [apply(net, example, plan, PruningTarget("ratio", share)).model[0].out_channels for share in (0.25, 0.5)]
    [6, 4]
    """
    model = check_inputs(model, example)
    wanted = check_reconstruction(substitute if substitute is not None else reconstruction)
    if not plan.groups:
        raise nothing_to_prune(plan.frozen)
    method = settle(wanted, model, example, plan)
    cut, latency = _cut(model, example, plan, target, method, runtime, progress)
    if cut.held and cut.mask.all():
        warn(
            f"no channel is removed: rounding widths to multiples of {cut.round_to} keeps the {cut.held} that the "
            "target would remove; ask for more, or pass round_to=1",
            SlimilarWarning,
            stacklevel=2,
        )
    images = calibration_set(calibration, None, example, model=model, seed=seed, progress=progress)
    synthesised = images.images if images.origin == "synthesised" else None
    if method == "none" or cut.mask.all():
        result = _rewritten(model, example, plan, cut, verify)
    else:
        made = with_smaller_batches(
            images,
            device_of(model),
            lambda data: reconstructed_model(model, example, plan, cut, method, data, seed, progress),
        )
        result = _reconstructed(model, example, plan, made, method, verify)
    peak = peak_memory(device_of(model))
    by_images = reconstruction_method(result.reconstruction, bool(images)) is Reconstruction.LEAST_SQUARES
    fitted = len(images) if by_images else 0
    return replace(result, fitted=fitted, images=synthesised, latency=latency, peak_memory=peak)


def check_reconstruction(method: str) -> str:
    """Return a known method of reconstruction, or raise."""
    return choose(method, SUBSTITUTES, "reconstruction")


def _cut(
    model: nn.Module,
    example: Example,
    plan: Plan,
    target: PruningTarget | Cut,
    method: str,
    runtime: str | Runtime,
    progress: Progress | None,
) -> tuple[Cut, MeasuredLatency | None]:
    """Return the cut that meets a target, with room for the biases that reconstruction adds."""
    if isinstance(target, Cut):
        return target, None
    target = with_measured_rounding(target, Runtime.of(runtime), device_of(model))
    if target.kind == "latency":
        return cut_for_latency(model, example, plan, target, runtime, progress)
    reserve = bias_cost(model, example, plan, target.kind) if method != "none" else 0
    return plan.cut(replace(target, reserve=reserve)), None


def _rewritten(model: nn.Module, example: Example, plan: Plan, cut: Cut, verify: bool) -> Result:
    """Return the smaller model without reconstruction."""
    structure = plan.structure
    now = surgery(structure.trace, structure.grouping, cut.mask)
    small = operate(model, now)
    error = verify_rewrite(model, small, example, structure, cut.mask) if verify else None
    if now.stands:  # removed branches save their batch norms too
        cut = replace(cut, cost=count(small, example))
    return Result(small, cut, plan, remember(model, small, now), error)


def _reconstructed(
    model: nn.Module, example: Example, plan: Plan, made: ReconstructedModel, method: str, verify: bool
) -> Result:
    """Return the smaller model whose consumers make up for removed channels."""
    error = _verify_reconstructed(model, example, plan.structure, made) if verify else None
    done = remember(model, made.model, made.surgery)
    cut = replace(made.cut, cost=_cost_of(made, example, plan.structure)) if done.biases else made.cut
    return Result(made.model, cut, plan, done, error, method, notes=made.notes)


def _cost_of(made: ReconstructedModel, example: Example, structure: Structure) -> Cost:
    """Return the cost of a model that has gained biases; it is traced again where more has changed."""
    gained = made.surgery.biases
    layers = [made.model.get_submodule(module) for module in gained]
    if made.surgery.stands or any(getattr(layer, "transposed", False) for layer in layers):
        return count(made.model, example)
    return cost_model(structure.trace, structure.grouping, gained).at(made.cut.mask)


def _verify_reconstructed(
    model: nn.Module, example: Example, structure: Structure, made: ReconstructedModel
) -> float:
    """Compare the model that is returned with the program of the reconstructed network."""
    kept = made.cut.mask
    try:
        error = verify_reconstruction(made.program, structure.grouping, made.network, made.model, example)
        return verify_behind_zeros(model, None, example, structure, kept, error)
    except Exception:
        plain = operate(model, surgery(structure.trace, structure.grouping, kept))
        verify_rewrite(model, plain, example, structure, kept)  # names the group if the rewrite is at fault
        raise
