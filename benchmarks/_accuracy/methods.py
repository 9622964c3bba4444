"""What is compared: a name, the data it needs, what it is, and how a task is pruned to a share of its FLOPs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from rivals import folding, grail, torch_pruning
from torch import Tensor, nn

import slimilar
from _accuracy.images import Task
from slimilar.calibration.calibration_set import calibration_set
from slimilar.criteria import automatic
from slimilar.pipeline import apply
from slimilar.pipeline.analysis import AnalysisOptions, plan_of
from slimilar.pipeline.automatic import decide
from slimilar.planning.rounding import RoundTo
from slimilar.planning.target import PruningTarget

Pruner = Callable[[Task, float], nn.Module]


def _ours(criterion: str = "span", data: str | None = None, substitute: str = "auto") -> Pruner:
    plans: dict[
        int, tuple[Task, slimilar.Plan, Tensor | None]
    ] = {}  # one plan serves all budgets of a network

    def prune(task: Task, flops: float) -> nn.Module:
        if id(task) not in plans:
            given = {
                None: lambda: None,
                "images": lambda: task.calibration,
                "synthesize": task.synthesised,
            }[data]()
            plan = slimilar.analyze(
                task.model, task.example, criterion=criterion, calibration=given, seed=task.seed
            )
            plans[id(task)] = (task, plan, given)
        _, plan, given = plans[id(task)]
        cut = plan.at(flops=flops, round_to=1)
        done = apply(
            task.model, task.example, plan, cut, substitute=substitute, calibration=given, seed=task.seed
        )
        return done.model.eval()

    return prune


def _auto(round_to: RoundTo = 1) -> Pruner:
    """What prune() does with criterion "auto": everything decided on held-out calibration images.

    Any width, as the rivals have, or the default: widths that runtimes like. The scan, which is the same for every
    budget, is made once; its seconds are in the first row of a network.
    """
    scans: dict[int, tuple[Task, slimilar.Plan]] = {}

    def prune(task: Task, flops: float) -> nn.Module:
        images = calibration_set(task.calibration, None, task.example, seed=task.seed)
        options, target = AnalysisOptions(), PruningTarget("flops", flops, round_to)
        criterion = automatic(len(images), target.kind)
        if id(task) not in scans and criterion == "span":
            plan = plan_of(task.model, task.example, replace(options, criterion=criterion), images)
            scans[id(task)] = task, plan
        scanned = scans[id(task)][1] if id(task) in scans else None
        found = decide(task.model, task.example, options, target, "auto", images, scanned=scanned)
        done = apply(
            task.model,
            task.example,
            found.plan,
            target,
            calibration=found.images,
            seed=task.seed,
            verify=False,
        )
        return done.model.eval()

    return prune


def _recalibrated(made: Pruner) -> Pruner:
    """The same with batch norms that hold the statistics of the calibration images."""

    def prune(task: Task, flops: float) -> nn.Module:
        return slimilar.recalibrate(made(task, flops), task.example, task.calibration).eval()

    return prune


REAL, FREE = "images", "none"
METHODS: dict[str, tuple[str, str, Pruner]] = {  # name -> (data, what it is, how)
    "auto": (REAL, "prune(), all on auto, any width", _auto()),
    "auto-rounded": (REAL, "prune(), all on auto, widths rounded as by default", _auto("auto")),
    "ours": (REAL, "span, least squares", _ours(data="images")),
    "similarity-linear": (REAL, "similarity, least squares", _ours("similarity", "images")),
    "ours-recalibrated": (
        REAL,
        "span, least squares, batch norms recalibrated",
        _recalibrated(_ours(data="images")),
    ),
    "none-recalibrated": (
        REAL,
        "similarity, plain removal, batch norms recalibrated",
        _recalibrated(_ours("similarity", substitute="none")),
    ),
    **{
        name: (REAL, f"{name}, least squares", _ours(name, "images"))
        for name in ("similarity-active", "similarity-filters", "similarity-images", "similarity-consumers")
    },
    "magnitude-linear": (REAL, "magnitude-l2, least squares", _ours("magnitude-l2", "images")),
    "grail": (REAL, "GRAIL: magnitude, ridge on the Gram matrix", grail),
    "synthesized": (FREE, "span, least squares, synthesised images", _ours(data="synthesize")),
    "similarity-linear-free": (FREE, "similarity, Gaussian regression (auto)", _ours("similarity")),
    "mean": (FREE, "similarity, mean", _ours("similarity", substitute="mean")),
    "merge": (FREE, "similarity, merge", _ours("similarity", substitute="merge")),
    "folding": (FREE, "Model Folding", folding),
    "torch-pruning": (FREE, "Torch-Pruning: magnitude", torch_pruning),
    "none": (
        FREE,
        "similarity, plain removal (the paper, before fine-tuning)",
        _ours("similarity", substitute="none"),
    ),
}
