"""Never worse than simple: plans at the same cost, compared on images that none of them was fitted to.

Each candidate's consumers are fitted to three quarters of some images, and the divergence from the original is measured
on the last quarter. The one with the least is carried out with all images.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from slimilar.calibration.batches import batch_size
from slimilar.calibration.calibration_set import Progress
from slimilar.calibration.divergence import divergence
from slimilar.calibration.holdout import hold_out
from slimilar.planning.plan import Cut, Plan
from slimilar.reconstruction.apply import substituted
from slimilar.reconstruction.least_squares import Settings
from slimilar.utils.pytree import Example, tensors_in

ALTERNATIVES = ("magnitude-l2", "similarity")  # plain criteria that "auto" has to beat
_COMPARED = 128  # images, of which a quarter is measured on
_MARGIN = 0.98  # an alternative must be better than noise


@dataclass(frozen=True, eq=False)
class Candidate:
    """A way to prune; `fitted` says whether consumers are fitted to images or reconstructed without data."""

    name: str
    plan: Plan
    cut: Cut
    fitted: bool = True


def compare(
    model: nn.Module,
    example: Example,
    candidates: Sequence[Candidate],
    images: Tensor,
    seed: int = 0,
    progress: Progress | None = None,
) -> dict[str, float]:
    """Return for every candidate the divergence from the original on held-out images."""
    some = images[torch.linspace(0, len(images) - 1, min(len(images), _COMPARED)).round().long()]
    parts = hold_out(list(some.split(batch_size(example))))
    fit = torch.cat(parts.fit)
    settings = Settings(seed=seed, steps=0, effort=3e9, mirror=False, choose="none")
    wanted = [_outputs(model, batch) for batch in parts.measure]
    found = {}
    for i, candidate in enumerate(candidates):
        calibration = fit if candidate.fitted else None
        made = substituted(
            model, example, candidate.plan, candidate.cut, "linear", calibration, seed, None, settings
        )
        given = [_outputs(made.model, batch) for batch in parts.measure]
        gaps = [divergence(a, b) for a, b in zip(given, wanted, strict=True)]
        found[candidate.name] = sum(gaps) / len(gaps)
        if progress is not None:
            progress("comparing plans", i + 1, len(candidates))
    return found


def best(scores: Mapping[str, float]) -> str:
    """Return the first candidate, unless another one is better by more than noise.

    >>> best({"span": 0.20, "similarity": 0.199}), best({"span": 0.20, "similarity": 0.10})
    ('span', 'similarity')
    """
    first = next(iter(scores))
    least = min(scores, key=lambda name: scores[name])
    return least if scores[least] < _MARGIN * scores[first] else first


def _outputs(model: nn.Module, batch: Tensor) -> list[Tensor]:
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            return list(tensors_in(model(batch)))
    finally:
        model.train(training)
