"""What `prune` and `apply` return."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor, nn

from slimilar.planning.cost import human
from slimilar.planning.cut import Cut
from slimilar.planning.latency import MeasuredLatency
from slimilar.planning.plan import Plan
from slimilar.similarity.removal_order import Cluster
from slimilar.surgery.rewrite import Surgery


@dataclass(frozen=True, eq=False)
class Result:
    """A smaller model, and how it was made."""

    model: nn.Module
    cut: Cut
    plan: Plan
    surgery: Surgery  # what was done to the original, as plain data
    error: float | None  # largest relative difference from the masked original; None if not verified
    reconstruction: str = "none"  # how the consumers of removed channels were reconstructed
    fitted: int = 0  # how many calibration images they were fitted to
    images: Tensor | None = None  # those synthesised for calibration, if any
    latency: MeasuredLatency | None = None  # measured where the target was a latency
    scores: Mapping[str, float] = field(
        default_factory=dict
    )  # of the plans compared: divergence, held-out images
    notes: tuple[str, ...] = ()  # what "auto" decided, and why
    peak_memory: int | None = None  # most bytes that tensors took on the model's accelerator; None on a CPU

    @property
    def substitute(self) -> str:
        """The earlier name of `reconstruction`."""
        return self.reconstruction

    @property
    def kept(self) -> Mapping[str, tuple[int, ...]]:
        """The channels that stayed, by group."""
        return self.cut.kept

    @property
    def clusters(self) -> Mapping[str, tuple[Cluster, ...]]:
        """The clusters behind them: a representative and its members each."""
        return self.cut.clusters

    def summary(self) -> str:
        """Return what was done, as a table."""
        before, after = self.cut.before, self.cut.cost
        lines = [f"{'layer':<40} {'before':>7} {'after':>7}"]
        widths = self.cut.widths
        lines += [f"{g.name:<40} {g.width:>7} {widths[g.name]:>7}" for g in self.plan.groups]
        for label, kind in (("FLOPs", "flops"), ("MACs", "macs"), ("parameters", "params")):
            a, b = getattr(before, kind), getattr(after, kind)
            lines.append(f"{label}: {human(a)} -> {human(b)} (-{1 - b / max(1, a):.1%})")
        reached = f"threshold {self.cut.threshold:.4g}, " if self.cut.by_threshold else ""
        lines.append(f"{reached}{len(self.plan.frozen)} groups cannot be pruned")
        if self.cut.round_to > 1:
            held = f"; rounding keeps {self.cut.held} more channels" if self.cut.held else ""
            lines.append(f"widths are multiples of {self.cut.round_to}, or less in narrow layers{held}")
        if self.latency is not None:
            times = f"{self.latency.before.value:.3g} ms -> {self.latency.after.value:.3g} ms"
            lines.append(f"time: {times} (-{1 - self.latency.ratio.value:.1%}), {self.latency.where}")
        if self.peak_memory is not None:
            lines.append(f"peak memory on the device: {self.peak_memory / 2**20:.0f} MiB")
        lines += [*self.notes, *[self.plan.note] * bool(self.plan.note)]
        return "\n".join(lines)
