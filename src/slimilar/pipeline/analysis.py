"""analyze(): what can be pruned, and what every cut costs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from slimilar.calibration.calibration_set import (
    CalibrationSet,
    Progress,
    calibration_set,
    wants_synthesis,
    with_smaller_batches,
)
from slimilar.calibration.program import program_for
from slimilar.criteria import CalibrationView, Criterion, Facts, Weights, facts, make
from slimilar.criteria.base import LazyCriterion, phases_of
from slimilar.criteria.needs import Given, check_needs
from slimilar.errors import InvalidInput, Option
from slimilar.graph.groups import Residual
from slimilar.graph.structure import Structure
from slimilar.pipeline.checks import check_finite, check_inputs, excluded_modules, listed
from slimilar.planning.assemble import EXCLUDED, Answers, LazyAnswer, assemble
from slimilar.planning.cost import CostModel, cost_model
from slimilar.planning.plan import Plan
from slimilar.similarity.linkage import Linkage
from slimilar.surgery.branches import with_branches
from slimilar.surgery.probe import find_structure
from slimilar.utils.checks import check_natural_number
from slimilar.utils.gc_pause import collector_paused
from slimilar.utils.modules import device_of, named_tensors
from slimilar.utils.precision import widened
from slimilar.utils.pytree import Example

Streams = Residual | Literal["auto"]  # "auto": streams too, where a criterion measures what that costs


@dataclass(frozen=True)
class AnalysisOptions:
    """What decides on a plan, beside the model and the images."""

    criterion: Criterion | str = "similarity"
    linkage: Linkage = "average"
    residual: Streams = "inner"
    exclude: tuple[str | nn.Module, ...] = ()
    min_channels: int = 1

    def __post_init__(self) -> None:
        if self.residual not in ("inner", "select", "joint", "auto"):
            raise InvalidInput(
                Option("residual"), f' must be "inner", "select", "joint" or "auto", got {self.residual!r}'
            )
        check_natural_number(self.min_channels, "min_channels")
        self.made()

    def made(self) -> Criterion:
        """Return the criterion."""
        return make(self.criterion, self.linkage)

    @property
    def streams(self) -> Residual:
        """What "auto" stands for: damage that is measured tells whether stream channels or inner ones cost less."""
        if self.residual != "auto":
            return self.residual
        return "joint" if self.made().name == "span" else "inner"

    @property
    def facts(self) -> Facts:
        """What the criterion declares about itself."""
        return facts(self.criterion)

    def check_needs(self, model: nn.Module, images: bool, labels: bool) -> None:
        """Raise unless there is what the criterion needs."""
        criterion = self.made()
        trained = bool(getattr(criterion, "trained", False)) or criterion.name in phases_of(model)
        check_needs(criterion.name, self.facts, Given(images, labels, trained))


@torch.inference_mode(mode=False)
def analyze(
    model: nn.Module,
    example: Example = None,
    *,
    criterion: Criterion | str = "similarity",
    calibration: Any = None,
    labels: Tensor | None = None,
    linkage: Linkage = "average",
    residual: Streams = "inner",
    exclude: Iterable[str | nn.Module] = (),
    min_channels: int = 1,
    seed: int = 0,
    progress: Progress | None = None,
) -> Plan:
    """Return which channels can be pruned, and the cost of every cut. The model is not modified.

    `example` is an input of the model: a tensor, a tuple of arguments, or a dict of keyword arguments. `calibration`
    is a tensor of unlabelled images, an iterable of batches, or "synthesize", for criteria that need images. `labels`
    are the labels of these images, for criteria that need them; batches of (images, labels) are accepted too.
    `plan.at(...)` returns a cut; `slimilar.apply` builds its model.

    >>> import torch
    >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3))
    >>> _ = nn.init.normal_(net[1].weight), nn.init.normal_(net[1].bias)
    >>> [group.name for group in analyze(net, torch.zeros(1, 3, 8, 8)).groups]
    ['0']
    """
    model = check_inputs(model, example)
    options = AnalysisOptions(criterion, linkage, residual, listed(exclude), min_channels)
    check_early(model, options, calibration)
    images = calibration_set(calibration, labels, example, model=model, seed=seed, progress=progress)
    with nullcontext() if images else collector_paused():
        return plan_of(model, example, options, images, progress)


def check_early(model: nn.Module, options: AnalysisOptions, calibration: Any) -> None:
    """Raise before images are read or synthesised if the criterion needs what they cannot give."""
    excluded_modules(model, options.exclude)
    options.check_needs(model, calibration is not None, labels=not wants_synthesis(calibration))


def plan_of(
    model: nn.Module,
    example: Example,
    options: AnalysisOptions,
    images: CalibrationSet,
    progress: Progress | None = None,
    structure: Structure | None = None,
) -> Plan:
    """Return the plan of a model whose inputs are checked; a `structure` found before spares a trace."""
    excluded = excluded_modules(model, options.exclude)
    check_finite(model, held := named_tensors(model))
    options.check_needs(model, bool(images), images.labels is not None)
    structure = structure or find_structure(model, example, options.streams)
    if options.min_channels == 0:
        structure = with_branches(model, structure, excluded)
    costs = cost_model(structure.trace, structure.grouping)
    tensors, criterion = widened(held), options.made()

    def answers_on(data: CalibrationSet) -> Answers:
        calibration = _calibration_view(model, example, structure, costs, data, progress) if data else None
        weights = Weights(tensors, calibration, phases_of(model), structure)
        orders = _answers(criterion, weights, structure, excluded)
        note = criterion.note(structure.grouping.groups, weights) if hasattr(criterion, "note") else ""
        return Answers(criterion.name, orders, options.facts.exchangeable, note)

    answers = with_smaller_batches(images, device_of(model), answers_on)
    return assemble(structure, costs, answers, options.min_channels)


def _calibration_view(
    model: nn.Module,
    example: Example,
    structure: Structure,
    costs: CostModel,
    images: CalibrationSet,
    progress: Progress | None,
) -> CalibrationView:
    """Return the images and the means to run the network on them, for the criterion."""
    program, images = program_for(model, example, structure, images)
    return CalibrationView(
        program.trace, structure.grouping, costs, program, images.batches, images.seed, progress, images.label_batches
    )  # fmt: skip


def _answers(
    criterion: Criterion, weights: Weights, structure: Structure, excluded: set[str]
) -> Mapping[str, LazyAnswer]:
    """Return what the criterion answers for every group that is not excluded, by name."""
    groups = structure.grouping.groups
    found: dict[str, LazyAnswer] = {g.name: EXCLUDED for g in groups if excluded & set(g.producers)}
    asked = [g for g in groups if g.name not in found]
    ask = criterion.lazy_orders if isinstance(criterion, LazyCriterion) else criterion.orders
    answers = ask(asked, weights)
    return found | {g.name: answer for g, answer in zip(asked, answers, strict=True)}


def plan_from(
    model: nn.Module,
    example: Example,
    answers: Answers,
    *,
    residual: Residual = "inner",
    min_channels: int = 1,
) -> Plan:
    """Return the plan of stored answers: the model is traced, and no criterion runs."""
    model = check_inputs(model, example)
    structure = find_structure(model, example, residual)
    if min_channels == 0:
        structure = with_branches(model, structure)
    return assemble(structure, cost_model(structure.trace, structure.grouping), answers, min_channels)
