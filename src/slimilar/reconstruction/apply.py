"""Between a cut and its substitute: what "auto" means, room for biases, and the consumers' new weights in the model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from warnings import warn

import numpy as np
import torch
from torch import nn

from slimilar.calibration.batches import AFFORDED
from slimilar.calibration.calibration_set import CalibrationSet, Progress, calibration_set
from slimilar.calibration.consumers import ConsumerLayer, find_consumers
from slimilar.calibration.flips import with_flips
from slimilar.calibration.holdout import Holdout, hold_out
from slimilar.calibration.program import NotReplayable, Program, program_for, program_of
from slimilar.errors import SlimilarError, SlimilarWarning
from slimilar.planning.cut import Cut
from slimilar.planning.plan import Plan
from slimilar.reconstruction.joint_refinement import (
    affordable_visits,
    enter,
    image_visits,
    refine_together,
)
from slimilar.reconstruction.least_squares import ExchangeableUnits, Network, Settings
from slimilar.reconstruction.methods import AUTO, LINEAR, OPTIONS, Reconstruction, reconstruction_method
from slimilar.reconstruction.reconstruct import rebuild
from slimilar.reconstruction.reconstruct import substitute as stand_in
from slimilar.surgery.rewrite import Kept, Surgery, surgery
from slimilar.utils.modules import named_tensors
from slimilar.utils.precision import widened
from slimilar.utils.pytree import Example

SUBSTITUTES = OPTIONS

# Samples for each unknown, at least. With eight, held-out images choose ridges in wide layers that are up to ten times
# as strong, and the network as a whole loses by it.
_ROWS = 24


def settle(substitute: str, model: nn.Module, example: Example, plan: Plan) -> str:
    """Return what "auto" stands for: the best method for a model that can be replayed, else none, with a warning."""
    if substitute != AUTO:
        return substitute
    try:
        program_of(model, example, plan.structure)
    except NotReplayable as error:
        warn(f"consumers are not reconstructed, because {error.why}", SlimilarWarning, stacklevel=2)
        return Reconstruction.NONE
    return LINEAR


def bias_cost(model: nn.Module, example: Example, plan: Plan, kind: str) -> int:
    """Return what added biases may cost: each consumer that has no place for a constant may gain one.

    Also one that loses no channel: it is fitted too, once its input has changed. `kind` is "flops" or "params"; biases
    add nothing to another cost.
    """
    if kind not in ("flops", "params"):
        return 0
    structure = plan.structure
    consumers = find_consumers(structure.trace, structure.grouping, program_of(model, example, structure))
    bare = [s for s in consumers if s.bias is None and s.norm is None]
    outs = [structure.trace.values[structure.trace.ops[s.op].outputs[0]].shape for s in bare]
    return sum(math.prod(out) if kind == "flops" else out[1] for out in outs)


@dataclass(frozen=True, eq=False)
class ReconstructedModel:
    """A smaller model whose consumers are reconstructed, the surgery that makes it, the final cut, and the weights."""

    model: nn.Module
    surgery: Surgery
    cut: Cut
    network: Network  # the weights at the original's shapes
    program: Program  # that they were fitted with
    notes: tuple[str, ...] = ()  # what held-out images said


def settings_for(plan: Plan, images: int, seed: int) -> Settings:
    """Return how to fit a network: a large one without horizontal flips and to fewer samples, for the sake of time."""
    if plan.before.flops * images > AFFORDED:
        return Settings(seed=seed, mirror=False)
    return Settings(seed=seed, rows=_ROWS)


def reconstructed_model(
    model: nn.Module,
    example: Example,
    plan: Plan,
    cut: Cut,
    how: str,
    calibration: Any,
    seed: int,
    progress: Progress | None,
    settings: Settings | None = None,
) -> ReconstructedModel:
    """Return the smaller model in which consumers make up for removed channels."""
    grouping = plan.structure.grouping
    data = calibration_set(calibration, None, example, seed=seed)
    method = reconstruction_method(how, bool(data))
    if method is not Reconstruction.LEAST_SQUARES:
        data = CalibrationSet(seed=seed)
    program, data = program_for(model, example, plan.structure, data)
    batches, tensors = data.batches, widened(named_tensors(model))
    settings = settings or settings_for(plan, sum(map(len, batches)), seed)
    settings = replace(settings, distinct=max(1, len(batches)))
    if settings.mirror and batches:
        batches = with_flips(batches, program, tensors)
    report = None if progress is None else lambda i, n: progress("reconstructing", i, n)
    consumers = find_consumers(program.trace, grouping, program)
    again = settings.choose if batches and plan.exchangeable else "none"
    choosers = [s for s in consumers if again == "all" or (again == "sums" and s.add is not None)]
    exchange = _exchange(plan, cut, consumers, choosers) if choosers else None
    network = stand_in(
        method, grouping, program, tensors, cut.mask, _stand_ins(plan, cut), batches, settings,
        report, exchange,
    )  # fmt: skip
    cut = _with(plan, cut, network.kept)
    small, done = rebuild(model, network, consumers, surgery(plan.structure.trace, grouping, cut.mask))
    made = ReconstructedModel(small, done, cut, network, program)
    # asked for by its name, least squares is all that is done
    if not batches or not settings.together or how == Reconstruction.LEAST_SQUARES or done.stands:
        return made
    # a chain comes closer to the original's scores, but gains no accuracy by it
    if all(consumer.add is None for consumer in consumers) or not affordable_visits(cut):
        return made
    parts = hold_out(data.batches)
    if len(batches) > len(data.batches):
        parts = replace(parts, fit=[*parts.fit, *(b.flip(-1) for b in parts.fit)])
    return _refined(made, consumers, example, parts, seed, progress)


def _refined(
    made: ReconstructedModel,
    consumers: Sequence[ConsumerLayer],
    example: Example,
    images: Holdout,
    seed: int,
    progress: Progress | None,
) -> ReconstructedModel:
    """Return the model after steps of all layers together, where there are images enough and these do good."""
    visits = image_visits(made.cut, images)
    if not visits:
        return made
    report = None if progress is None else lambda i, n: progress("refining all layers", i, n)
    try:
        found = refine_together(
            made.program, made.network, consumers, made.model, made.surgery, example, images, visits, seed, report
        )  # fmt: skip
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, SlimilarError) as error:  # no gradient, or no second run: what was fitted is sound
        told = (str(error).strip().splitlines() or [type(error).__name__])[0]
        return replace(made, notes=(f"all layers were not refined together, because steps raised: {told}",))
    if found is None:
        return replace(made, notes=("refining all layers together did no good on held-out images: left out",))
    enter(found.changed, made.network, made.surgery)
    told = f"divergence on held-out images {found.before:.4f} -> {found.after:.4f}"
    return replace(made, model=found.model, notes=(f"all layers were refined together: {told}",))


def _exchange(
    plan: Plan, cut: Cut, consumers: Sequence[ConsumerLayer], choosers: Sequence[ConsumerLayer]
) -> ExchangeableUnits:
    """Return the channels that consumers may choose again: of a group that one alone reads, and nothing else.

    On a residual branch the target is no longer what the scan aimed at: it makes up for what the stream has lost.
    """
    grouping = plan.structure.grouping
    spare, loose = np.zeros_like(cut.mask), np.zeros_like(cut.mask)
    for group, order in zip(plan.groups, plan.orders, strict=True):
        start = grouping.offsets[list(grouping.groups).index(group)]
        mine = [s for s in consumers if ((s.units >= start) & (s.units < start + group.width)).any()]
        width, units = cut.widths[group.name], start + order.removed
        gone = units[~cut.mask[units]]
        if (
            len(mine) != 1
            or mine[0] not in choosers
            or len(mine[0].units) != group.width
            or len(gone) != group.width - width
        ):
            continue
        loose[units] = True
        spare[gone[max(0, len(gone) - width // 2 - 16) :]] = True
    return ExchangeableUnits(spare, loose)


def _with(plan: Plan, cut: Cut, kept: Kept) -> Cut:
    """Return a cut in which other channels stay, as many of every group."""
    if np.array_equal(kept, cut.mask):
        return cut
    grouping, stays = plan.structure.grouping, dict(cut.kept)
    for start, group in zip(grouping.offsets, grouping.groups, strict=True):
        if group.name in stays:
            stays[group.name] = tuple(np.flatnonzero(kept[start : start + group.width]).tolist())
    return cut.with_channels(stays, kept)


def _stand_ins(plan: Plan, cut: Cut) -> dict[int, int]:
    """Return, for every removed unit, the kept one that represents its cluster, over all groups."""
    found = {}
    grouping = plan.structure.grouping
    for start, group in zip(grouping.offsets, grouping.groups, strict=True):
        for cluster in cut.clusters.get(group.name, ()):
            for member in cluster.members:
                if member != cluster.representative:
                    found[start + member] = start + cluster.representative
    return found
