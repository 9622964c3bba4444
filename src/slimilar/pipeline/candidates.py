"""Never worse than simple: plans at the same cost, compared on images that none of them was fitted to.

Each candidate's consumers are fitted to three quarters of some images, and the divergence from the original is measured
on the last quarter. The first one that none is surely better than is carried out with all images: differences are
tested image by image. These fits are quick ones, the same for all candidates: kernels of several taps keep their shape,
and consumers that lose no channel stay as they are. A first look at few images sorts out those that are surely behind;
only if others are left, more images decide between them. At strong cuts a quick fit to few images may lose nearly
everything where the real one loses little. So if the best one loses much, or needs no data, those that are left are
compared as they would be carried out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from slimilar.calibration.calibration_set import CalibrationSet, Progress
from slimilar.calibration.divergence import divergence_by_image, surely_less
from slimilar.calibration.holdout import even_batches, hold_out
from slimilar.calibration.several_inputs import as_example
from slimilar.planning.cut import Cut
from slimilar.planning.plan import Plan
from slimilar.reconstruction.apply import reconstructed_model, settings_for
from slimilar.reconstruction.least_squares import Settings
from slimilar.surgery.verify import plain_outputs
from slimilar.utils.modules import device_of
from slimilar.utils.pytree import Example, map_tensors
from slimilar.utils.sampling import evenly

ALTERNATIVES = ("magnitude-l2", "similarity")  # plain criteria that "auto" has to beat
_FIRST_LOOK = 32  # images; a quarter of them is measured on, as in all looks
_SEARCH_LEAST = 128  # images that a search, and the second look, see at least
_SEARCH = 1.5e11  # FLOPs of one pass of the network over these, where that affords more
_REAL = 512  # images of a look at real fits
_POOR = 0.5  # a divergence at which quick fits tell little: 1 is that of a network that says nothing
_FAR_BEHIND = 2.0  # times the divergence of the best: no look at more images would make up for that
_FAIRLY_SURE, _SURE = 2.0, 4.0  # standard errors: behind by far, or by little
_QUICK = Settings(form="quick", steps=0, effort=3e9, mirror=False, choose="none", polish=False)


@dataclass(frozen=True, eq=False)
class Candidate:
    """A way to prune; `fitted` says whether consumers are fitted to images or reconstructed without data."""

    name: str
    plan: Plan
    cut: Cut
    fitted: bool = True


@dataclass(frozen=True)
class PlanComparison:
    """The name of the candidate to take, and the divergence of each from the original on held-out images."""

    chosen: str
    scores: Mapping[str, float]


def compare(
    model: nn.Module,
    example: Example,
    candidates: Sequence[Candidate],
    images: CalibrationSet,
    progress: Progress | None = None,
) -> PlanComparison:
    """Return the first candidate that no other one surely beats, and all scores: the first look's if far behind.

    Those far behind count no less than the others' worst, as an easier look may have flattered them.
    """

    def look(at: Sequence[Candidate], count: int, quick: bool = True) -> dict[str, Tensor]:
        held_out, found = HeldOutImages.of(model, example, images, count), {}
        for i, candidate in enumerate(at):
            found[candidate.name] = held_out.gaps(candidate, quick)
            if progress is not None:
                progress(f"comparing plans on {count} images", i + 1, len(at))
        return found

    scores: dict[str, float] = {}
    left = list(candidates)
    for count in sorted({min(_FIRST_LOOK, len(images)), search_images(candidates[0].plan, len(images))}):
        found = look(left, count)
        scores |= {name: float(gaps.mean()) for name, gaps in found.items()}
        ahead = sorted(left, key=lambda c: scores[c.name])
        first, fit = ahead[0], next((c for c in ahead if c.fitted), ahead[0])
        left = [c for c in left if not _is_behind(found[c.name], found[fit.name if c.fitted else first.name])]
        if len(left) == 1:
            break
    worst = max(scores[c.name] for c in left)
    behind = {c.name for c in candidates} - {c.name for c in left}
    scores = {name: max(score, worst) if name in behind else score for name, score in scores.items()}
    if len(left) > 1 and not (first.fitted and scores[first.name] < _POOR):
        # narrow deep networks: a quick fit to few images lost 1.35, the real one to 1,024 lost 0.07
        found = look(left, min(_REAL, len(images)), quick=False)
        decided = {name: float(gaps.mean()) for name, gaps in found.items()}
        scores = {name: max(score, *decided.values()) for name, score in scores.items()} | decided
    return PlanComparison(first_unbeaten({c.name: found[c.name] for c in left}), scores)


def _is_behind(gaps: Tensor, least: Tensor) -> bool:
    """Tell whether a candidate is behind the best one so far or so surely that more images would not change it.

    One far behind need not be as surely so, but never by one image alone: a network that knows its training images by
    heart gives away next to nothing on most of them, whatever it has lost.

    >>> best = torch.tensor([0.10, 0.30, 0.20, 0.40])
    >>> _is_behind(2.1 * best, best), _is_behind(best + torch.tensor([0.1, -0.1, 0.1, -0.08]), best)
    (True, False)
    >>> _is_behind(torch.tensor([0.007, 0.0, 0.0, 0.0]), torch.tensor([0.0002, 0.0, 0.0, 0.0]))
    False
    """
    if len(gaps) < 4:
        return False
    if float(gaps.mean()) > _FAR_BEHIND * float(least.mean()) and surely_less(least, gaps, _FAIRLY_SURE):
        return True
    return float(least.mean()) < _POOR and surely_less(least, gaps, _SURE)


def first_unbeaten(gaps: Mapping[str, Tensor]) -> str:
    """Return the first candidate that is not worse than the best one by more than noise.

    >>> ahead = torch.tensor([0.2, 0.1, 0.3, 0.2])
    >>> first_unbeaten({"span": ahead + torch.tensor([0.1, -0.1, 0.2, -0.1]), "similarity": ahead})
    'span'
    >>> first_unbeaten({"span": 2 * ahead, "similarity": ahead})
    'similarity'
    """
    best = min(gaps, key=lambda name: float(gaps[name].mean()))
    return next(name for name in gaps if not surely_less(gaps[best], gaps[name]))


def search_images(plan: Plan, images: int) -> int:
    """Return how many images a search looks at: more in small networks, where they cost little."""
    affordable = int(_SEARCH / max(1, plan.before.flops))
    return min(images, _REAL, max(_SEARCH_LEAST, affordable))


@dataclass(frozen=True, eq=False)
class HeldOutImages:
    """Images to fit candidates to, others to measure them on, and what the original gives for these."""

    model: nn.Module
    example: Example
    count: int
    fit: CalibrationSet
    measure: Sequence[Tensor]
    wanted: Sequence[list[Tensor]]

    @staticmethod
    def of(model: nn.Module, example: Example, images: CalibrationSet, count: int) -> HeldOutImages:
        """Hold a quarter of so many images out."""
        parts = hold_out(_some(images, count))
        wanted = [_outputs(model, example, batch) for batch in parts.measure]
        return HeldOutImages(model, example, count, images.only(torch.cat(parts.fit)), parts.measure, wanted)

    def gaps(self, candidate: Candidate, quick: bool = True) -> Tensor:
        """Return the divergence of a candidate on every image that is measured on."""
        usual = settings_for(candidate.plan, self.count, self.fit.seed)
        settings = replace(_QUICK if quick else usual, seed=self.fit.seed, together=False)
        made = reconstructed_model(
            self.model, self.example, candidate.plan, candidate.cut, "linear",
            self.fit if candidate.fitted else None, self.fit.seed, None, settings,
        )  # fmt: skip
        given = [_outputs(made.model, self.example, batch) for batch in self.measure]
        return torch.cat([divergence_by_image(a, b) for a, b in zip(given, self.wanted, strict=True)])


def _some(images: CalibrationSet, count: int) -> list[Tensor]:
    """Return batches of so many images, taken evenly."""
    assert images.images is not None
    chosen = torch.from_numpy(evenly(len(images), count))
    return even_batches(images.images[chosen], images.batch_size)


def _outputs(model: nn.Module, example: Example, batch: Tensor) -> list[Tensor]:
    """Return what a model gives for images, which come to where it is and in its precision."""
    device = device_of(model)
    return plain_outputs(model, map_tensors(lambda t: t.to(device), as_example(batch, example)))
