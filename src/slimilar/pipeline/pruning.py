"""prune(): analyse, choose a cut, apply it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from slimilar.calibration.calibration_set import Progress, calibration_set
from slimilar.criteria import Criterion
from slimilar.deploy.rounding_measurement import with_measured_rounding
from slimilar.deploy.runtimes import Runtime
from slimilar.pipeline.analysis import AnalysisOptions, Streams, check_early, plan_of
from slimilar.pipeline.application import apply, check_reconstruction
from slimilar.pipeline.automatic import Decision, decide
from slimilar.pipeline.checks import check_inputs, listed
from slimilar.planning.budgets import Budget
from slimilar.planning.rounding import RoundTo
from slimilar.planning.target import PruningTarget
from slimilar.result import Result
from slimilar.similarity.linkage import Linkage
from slimilar.utils.gc_pause import collector_paused
from slimilar.utils.modules import device_of
from slimilar.utils.pytree import Example


@torch.inference_mode(mode=False)  # in that mode, operators and their gradients are others
def prune(
    model: nn.Module,
    example: Example = None,
    *,
    threshold: float | None = None,
    flops: Budget | None = None,
    macs: Budget | None = None,
    params: Budget | None = None,
    latency: Budget | None = None,
    ratio: float | None = None,
    quantile: float | None = None,
    round_to: RoundTo = "auto",
    thresholds: Mapping[str, float] | None = None,
    criterion: Criterion | str = "auto",
    reconstruction: str = "auto",
    calibration: Any = None,
    labels: Tensor | None = None,
    linkage: Linkage = "average",
    residual: Streams = "inner",
    exclude: Iterable[str | nn.Module] = (),
    min_channels: int = 1,
    runtime: str | Runtime = "pytorch",
    verify: bool = True,
    seed: int = 0,
    progress: Progress | None = None,
    substitute: str | None = None,
) -> Result:
    """Return a NEW, smaller model of the same class. The given model is not modified.

    Pass exactly one target: a `threshold`; a budget (`flops`, `macs` or `params`: a share such as 0.5, or a number
    such as "4.4G"); a `latency` measured in a `runtime` (a share, or a time such as "12ms"; `slimilar.Runtime` sets
    threads and batch size); a `ratio`, the share of channels to remove from every layer; or a `quantile`, the share
    of all channels to remove. `round_to` makes widths multiples of a number, which run faster: 16 by default, less
    where 16 costs too much; "measure" measures which multiple is fast in the `runtime`; 1 allows every width.

    `calibration` is a tensor of unlabelled images, an iterable of batches, or "synthesize". With a budget and at least
    16 images, criterion "auto" removes the channels whose removal changes the output least ("span"), unless a simpler
    criterion does better on held-out images at the same cost (`Result.scores`). Otherwise it is the paper's
    similarity. Reconstruction "auto" refits the consumers of removed channels: by least squares on the images (and
    their horizontal flips, if the network is invariant to them), after which all layers of a small residual network
    are refined together, or, without images, from the statistics of batch norms and filters. `residual="auto"` also
    prunes residual streams if that costs less on held-out images. `substitute` is the earlier name of
    `reconstruction`.

    >>> import torch
    >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3))
    >>> _ = nn.init.normal_(net[1].weight), nn.init.normal_(net[1].bias)
    >>> result = prune(net, torch.zeros(1, 3, 8, 8), flops=0.5)
    >>> result.cut.flops <= 0.5 * result.cut.before.flops
    True
    """
    target = PruningTarget.of(
        threshold=threshold, flops=flops, macs=macs, params=params, latency=latency, ratio=ratio, quantile=quantile,
        round_to=round_to, thresholds=thresholds,
    )  # fmt: skip
    method = check_reconstruction(substitute if substitute is not None else reconstruction)
    runtime = Runtime.of(runtime)
    model = check_inputs(model, example)
    target = with_measured_rounding(target, runtime, device_of(model))
    options = AnalysisOptions(
        "similarity" if criterion == "auto" else criterion, linkage, residual, listed(exclude), min_channels
    )
    check_early(model, options, calibration)
    images = calibration_set(calibration, labels, example, model=model, seed=seed, progress=progress)
    with nullcontext() if images else collector_paused():
        decision = (
            decide(model, example, options, target, method, images, progress)
            if criterion == "auto"
            else Decision(plan_of(model, example, options, images, progress), images)
        )
        result = apply(
            model, example, decision.plan, target, reconstruction=method, calibration=decision.images, runtime=runtime,
            verify=verify, seed=seed, progress=progress,
        )  # fmt: skip
    synthesised = images.images if images.origin == "synthesised" else None
    return replace(result, images=synthesised, scores=decision.scores, notes=(*decision.notes, *result.notes))
