"""What criterion "auto" does: it measures where it can, compares with plain plans, and says what it chose."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from torch import Tensor, nn

from slimilar.calibration.calibration_set import CalibrationSet, Progress, with_smaller_batches
from slimilar.calibration.program import program_for
from slimilar.criteria import ENOUGH_IMAGES, automatic
from slimilar.errors import NothingToPrune, UnreachableBudget
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

INNER = "span, inner channels"  # the candidate that leaves residual streams whole


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

    def attempt(name: str, make: Callable[[], Plan]) -> list[Candidate]:
        return _reachable(lambda: candidate(name, make()))

    weight = DepthWeight(0)
    # thresholds that a caller has set for single layers refer to the heights as they are
    if target.kind in COSTS and len(plan.groups) > 1 and not target.thresholds:
        weight = with_smaller_batches(
            images,
            device_of(model),
            lambda data: _depth_weight(model, example, lambda p: candidate("span", p), plan, data, progress),
        )
    plan = weighted_by_depth(plan, weight.exponent)
    found = [candidate("span", plan)]
    if options.residual == "auto":  # first, so that stream channels leave only where that is surely better
        inner = partial(plan_of, model, example, replace(options, residual="inner"), images)
        found = attempt(INNER, lambda: weighted_by_depth(inner(), weight.exponent)) + found
    for name in ALTERNATIVES:
        other = replace(options, criterion=name)
        found += attempt(name, partial(plan_of, model, example, other, images, structure=plan.structure))
    found += [replace(c, name=f"{c.name}, data-free", fitted=False) for c in found if c.name == "similarity"]
    compared = with_smaller_batches(
        images, device_of(model), lambda data: compare(model, example, found, data, progress)
    )
    scores, chosen = compared.scores, next(c for c in found if c.name == compared.chosen)
    used = images if chosen.fitted else CalibrationSet(seed=images.seed)
    weighted = weight.exponent and chosen.plan.criterion == options.criterion
    notes = (_told_depth(weight),) if weighted else ()
    return Decision(chosen.plan, used, scores, (*notes, _told(chosen.name, scores)))


def _depth_weight(
    model: nn.Module,
    example: Example,
    candidate: Callable[[Plan], Candidate],
    plan: Plan,
    images: CalibrationSet,
    progress: Progress | None,
) -> DepthWeight:
    """Return how the losses of layers should count by their depth, as held-out images have it."""
    looks, held_out = 0, HeldOutImages.of(model, example, images, search_images(plan, len(images)))

    def gaps(exponent: float) -> Tensor:
        nonlocal looks
        found = held_out.gaps(candidate(weighted_by_depth(plan, exponent)))
        looks += 1
        if progress is not None:
            progress("weighting layers by depth", looks, MOST_TRIED)
        return found

    return find_depth_weight(gaps)


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
