"""What criterion "auto" does: it measures where it can, compares with plain plans, and says what it chose."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from torch import Tensor, nn

from slimilar.calibration.calibration_set import CalibrationSet, Progress, with_smaller_batches
from slimilar.calibration.program import program_for
from slimilar.criteria import ENOUGH_IMAGES, automatic
from slimilar.errors import NothingToPrune, UnreachableBudget
from slimilar.graph.structure import Structure
from slimilar.pipeline.analysis import AnalysisOptions, plan_of
from slimilar.pipeline.candidates import (
    ALTERNATIVES,
    Candidate,
    HeldOutImages,
    compare,
    search_images,
)
from slimilar.pipeline.depth_weights import (
    MOST_TRIED,
    DepthWeight,
    find_depth_weight,
    weighted_by_depth,
)
from slimilar.planning.plan import Plan
from slimilar.planning.target import COSTS, PruningTarget
from slimilar.reconstruction.apply import bias_cost, settle
from slimilar.reconstruction.methods import LINEAR, Reconstruction
from slimilar.utils.modules import device_of
from slimilar.utils.pytree import Example


@dataclass(frozen=True, eq=False)
class Decision:
    """A plan, the images to reconstruct with, and why: the divergence of each candidate on held-out images."""

    plan: Plan
    images: CalibrationSet
    scores: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def decide(
    model: nn.Module,
    example: Example,
    options: AnalysisOptions,
    target: PruningTarget,
    method: str,
    images: CalibrationSet,
    progress: Progress | None = None,
    scanned: Plan | None = None,
) -> Decision:
    """Return the plan that does best on held-out images; with too few images, one that needs none.

    `scanned` is the first candidate where another budget has measured it before: the scan is the same for all.
    """
    notes: tuple[str, ...] = ()
    if 0 < len(images) < ENOUGH_IMAGES:
        images, notes = CalibrationSet(seed=images.seed), (_too_few(len(images)),)
    options = replace(options, criterion=automatic(len(images), target.kind))
    plan = scanned or plan_of(model, example, options, images, progress)
    given, images = images, program_for(model, example, plan.structure, images)[1] if images else images
    compares = options.criterion == "span" and target.kind in (*COSTS, "ratio") and bool(plan.groups)
    compares = compares and images.batch_size == given.batch_size  # else the model takes no other batches
    if not compares or settle(method, model, example, plan) not in (LINEAR, Reconstruction.LEAST_SQUARES):
        return Decision(plan, images, notes=notes)

    def candidate(name: str, plan: Plan) -> Candidate:
        reserve = bias_cost(model, example, plan, target.kind)
        return Candidate(name, plan, plan.cut(replace(target, reserve=reserve)))

    def attempt(name: str, options: AnalysisOptions, structure: Structure | None = None) -> list[Candidate]:
        return _reachable(
            lambda: candidate(name, plan_of(model, example, options, images, structure=structure))
        )

    weighted: tuple[str, ...] = ()
    # thresholds that a caller has set for single layers refer to the heights as they are
    if target.kind in COSTS and len(plan.groups) > 1 and not target.thresholds:
        plan, weighted = with_smaller_batches(
            images,
            device_of(model),
            lambda data: _by_depth(model, example, lambda p: candidate("span", p), plan, data, progress),
        )
    found = [candidate("span", plan)]
    if options.residual == "auto":
        found += attempt("span, inner channels", replace(options, residual="inner"))
    for name in ALTERNATIVES:
        found += attempt(name, replace(options, criterion=name), plan.structure)
    found += [replace(c, name=f"{c.name}, data-free", fitted=False) for c in found if c.name == "similarity"]
    compared = with_smaller_batches(
        images, device_of(model), lambda data: compare(model, example, found, data, progress)
    )
    scores, chosen = compared.scores, next(c for c in found if c.name == compared.chosen)
    used = images if chosen.fitted else CalibrationSet(seed=images.seed)
    notes = (*weighted, _told(chosen.name, scores)) if chosen.plan is plan else (_told(chosen.name, scores),)
    return Decision(chosen.plan, used, scores, notes)


def _by_depth(
    model: nn.Module,
    example: Example,
    candidate: Callable[[Plan], Candidate],
    plan: Plan,
    images: CalibrationSet,
    progress: Progress | None,
) -> tuple[Plan, tuple[str, ...]]:
    """Return the plan with the losses of layers weighted as held-out images have it, and what there is to tell."""
    looks, held_out = 0, HeldOutImages.of(model, example, images, search_images(plan, len(images)))

    def gaps(exponent: float) -> Tensor:
        nonlocal looks
        found = held_out.gaps(candidate(weighted_by_depth(plan, exponent) if exponent else plan))
        looks += 1
        if progress is not None:
            progress("weighting layers by depth", looks, MOST_TRIED)
        return found

    weight = find_depth_weight(gaps)
    if not weight.exponent:
        return plan, ()
    return weighted_by_depth(plan, weight.exponent), (_told_depth(weight),)


def _reachable(make: Callable[[], Candidate]) -> list[Candidate]:
    """Return a candidate, or none where its criterion has no order for the layers or cannot reach the budget."""
    try:
        return [make()]
    except (NothingToPrune, UnreachableBudget):
        return []


def _too_few(amount: int) -> str:
    return (
        f"{amount} images are too few to fit to some and measure on others, so none was used: "
        f"pass {ENOUGH_IMAGES} or more"
    )


def _told_depth(weight: DepthWeight) -> str:
    told = f"divergence on held-out images {weight.before:.4f} -> {weight.after:.4f}"
    return f"later layers counted up to {math.exp(weight.exponent):.1f} times as much as earlier ones: {told}"


def _told(name: str, scores: Mapping[str, float]) -> str:
    listed = ", ".join(f"{other} {score:.4f}" for other, score in scores.items())
    noise = "" if scores[name] <= min(scores.values()) else "; none is better by more than noise"
    return f"chosen on held-out images: {name} (divergence from the original: {listed}{noise})"
