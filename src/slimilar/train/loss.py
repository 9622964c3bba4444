"""The training loss: cross entropy, and distillation from a teacher."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F

from slimilar.errors import InvalidInput
from slimilar.train.mixup import Mixture


@dataclass(frozen=True)
class Distillation:
    """How much to learn from a teacher's scores instead of the labels (Hinton et al., 2015)."""

    temperature: float = 4.0
    weight: float = 0.7

    def __post_init__(self) -> None:
        if self.temperature <= 0:
            raise InvalidInput(f"temperature must be positive, got {self.temperature}; 4 is usual")
        if not 0 <= self.weight <= 1:
            raise InvalidInput(f"weight must be in [0, 1], got {self.weight}; 0 ignores the teacher")


def training_loss(
    scores: Tensor,
    labels: Tensor,
    smoothing: float = 0.0,
    teacher_scores: Tensor | None = None,
    distillation: Distillation = Distillation(),  # noqa: B008 (frozen)
    mixture: Mixture | None = None,
) -> Tensor:
    r"""Return the mean loss of a batch.

    With a teacher's scores t, temperature T and weight w,
    $$(1 - w)\,\mathrm{CE}(s, y) + w\,T^2\,\mathrm{KL}(\mathrm{softmax}(t/T)\,\|\,\mathrm{softmax}(s/T)).$$
    The factor $T^2$ keeps the gradient's size independent of T. Of mixed images, both labels count by their shares;
    the teacher has seen the same mixed images.
    """
    loss = _cross_entropy(scores, labels, smoothing, mixture)
    if teacher_scores is None:
        return loss
    temperature, weight = distillation.temperature, distillation.weight
    student = F.log_softmax(scores / temperature, 1)
    teacher = F.log_softmax(teacher_scores / temperature, 1)
    divergence = F.kl_div(student, teacher, reduction="batchmean", log_target=True)
    return (1 - weight) * loss + weight * temperature**2 * divergence


def _cross_entropy(scores: Tensor, labels: Tensor, smoothing: float, mixture: Mixture | None) -> Tensor:
    if mixture is None:
        return F.cross_entropy(scores, labels, label_smoothing=smoothing)
    own, other = (
        F.cross_entropy(scores, found, label_smoothing=smoothing, reduction="none")
        for found in (labels, labels[mixture.partner])
    )
    return (mixture.share * own + (1 - mixture.share) * other).mean()
