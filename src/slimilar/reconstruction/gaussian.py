r"""What consumers can expect of a channel without any data.

A batch norm writes $x_c \sim N(\beta_c, \gamma_c^2)$. From there, means and variances are followed through activation
functions, pooling, concatenation and addition to every consumer. Two channels of one layer are taken to be as
correlated as their filters are alike, $\rho_{ij} = \pm \cos(w_i, w_j)$.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from slimilar.calibration.activations import supported
from slimilar.calibration.gaussian_moments import covariance, max_moments, moments
from slimilar.graph.labels import axes_of
from slimilar.graph.records import Op, Trace
from slimilar.utils.symmetric import symmetric

_SAME = ("dropout", "clone", "contiguous", "alias", "detach", "avg_pool", "adaptive_avg_pool", "upsample")
_VIEWS = ("view", "reshape", "flatten", "_unsafe_view", "squeeze", "unsqueeze")


@dataclass(frozen=True, eq=False)
class Channels:
    """Gaussian channels, the activation that was applied to them, and the places that pooling chose among."""

    mean: Tensor
    std: Tensor
    activation: str = "identity"
    options: tuple[tuple[str, Any], ...] = ()
    places: int = 1
    filters: Tensor | None = None  # rows that correlate as the channels do, but for the signs
    signs: Tensor | None = None

    def expectation(self) -> Tensor:
        """Return the mean of every channel as its consumers see it."""
        return self._moments[0]

    @cached_property
    def _moments(self) -> tuple[Tensor, Tensor]:
        if self.places > 1:
            # Neighbours are neither all alike nor independent: as if so many were, half-way between 1 and k.
            alone = self.places**0.5
            return max_moments(self.activation, self.mean, self.std, alone, **dict(self.options))
        return moments(self.activation, self.mean, self.std, **dict(self.options))

    def settled(self) -> Channels:
        """Return the channels as new Gaussians, with what was applied to them taken in."""
        if self.activation == "identity" and self.places == 1:
            return self
        mean, variance = self._moments
        return Channels(mean, variance.clamp_min(0).sqrt(), filters=self.filters, signs=self.signs)

    def covariance(self) -> Tensor | None:
        """Return the covariance of the channels as consumers see them, if their filters are known."""
        if self.filters is None or self.signs is None:
            return None
        rows = self.filters.float()
        products = symmetric(len(rows), lambda some, others: rows[some] @ rows[others].T)
        scale = self.signs.float() / products.diagonal().sqrt().clamp_min(1e-12)
        correlation = (products * scale[:, None] * scale).clamp(-1, 1)
        return covariance(self.activation, self.mean, self.std, correlation, **dict(self.options))


def expect(trace: Trace, tensors: Mapping[str, Tensor]) -> dict[int, Channels]:
    """Return what is known, without data, about the values of a trace."""
    known: dict[int, Channels] = {}
    filters: dict[int, Tensor] = {}
    for index, op in enumerate(trace.ops):
        found = _step(trace, tensors, op, index, known, filters)
        if found is not None and op.outputs:
            known[op.outputs[0]] = found
    return known


def _step(
    trace: Trace, tensors: Mapping[str, Tensor], op: Op, index: int, known: dict[int, Channels],
    filters: dict[int, Tensor],
) -> Channels | None:  # fmt: skip
    name = op.name.removeprefix("aten.").rstrip("_")
    given = [known.get(i) for i in op.inputs]
    first = given[0] if given else None
    if name == "convolution":
        weight = _tensor(trace, tensors, op, "weight")
        if weight is not None and not op.arguments.get("transposed") and op.arguments.get("groups") == 1:
            filters[op.outputs[0]] = weight.flatten(1)
        return None
    if "batch_norm" in name:
        return _batch_norm(trace, tensors, op, filters.get(op.inputs[0]))
    if first is None:
        return None
    if supported(name) and first.places == 1:
        first = first.settled()
        return replace(first, activation=name, options=_options(op))
    if name.startswith("max_pool"):
        return replace(first, places=first.places * _area(op))
    if name.startswith(_SAME) or (name == "mean" and len(op.inputs) == 1):
        return first
    if name in _VIEWS:
        return _viewed(trace, op, first)
    if name == "cat":
        return _cat(trace, op, given)
    if name == "add" and len(given) == 2 and given[1] is not None:
        a, b = first.settled(), given[1].settled()
        if a.mean.shape == b.mean.shape:
            return Channels(a.mean + b.mean, (a.std.square() + b.std.square()).sqrt())
    return None


def _tensor(trace: Trace, tensors: Mapping[str, Tensor], op: Op, name: str) -> Tensor | None:
    ref = op.arguments.get(name)
    held = None if ref is None or not hasattr(ref, "value") else trace.values[ref.value].name
    return None if held is None else tensors[held].detach().cpu()


def _batch_norm(
    trace: Trace, tensors: Mapping[str, Tensor], op: Op, filters: Tensor | None
) -> Channels | None:
    size = trace.values[op.inputs[0]].shape[1]
    gamma = _tensor(trace, tensors, op, "weight")
    beta = _tensor(trace, tensors, op, "bias")
    gamma = torch.ones(size) if gamma is None else gamma
    beta = torch.zeros(size) if beta is None else beta
    signs = torch.where(gamma < 0, -1.0, 1.0)
    return Channels(beta.double(), gamma.abs().double(), filters=filters, signs=signs)


def _options(op: Op) -> tuple[tuple[str, Any], ...]:
    wanted = ("negative_slope", "min_val", "max_val", "alpha", "beta", "approximate")
    return tuple((k, v) for k, v in op.arguments.items() if k in wanted and isinstance(v, int | float | str))


def _area(op: Op) -> int:
    kernel: Any = op.arguments["kernel_size"]
    axes = int(op.name.split("pool")[1][0])
    return int(kernel[0]) ** axes if len(kernel) == 1 else math.prod(kernel)


def _viewed(trace: Trace, op: Op, channels: Channels) -> Channels | None:
    """Follow channels through a flattening: each may fill several positions of the new axis."""
    labels = trace.values[op.outputs[0]].labels
    if len(labels) != 1 or len(axes_of(labels[0])) != 1:
        return None
    size = labels[0].numel()
    if size % len(channels.mean):
        return None
    times = size // len(channels.mean)
    if times == 1:
        return channels
    spread = replace(
        channels, mean=channels.mean.repeat_interleave(times), std=channels.std.repeat_interleave(times)
    )
    return replace(spread, filters=None, signs=None)


def _cat(trace: Trace, op: Op, given: list[Channels | None]) -> Channels | None:
    """Put channels side by side; parts that are not known stop it."""
    shape = trace.values[op.outputs[0]].shape
    if op.arguments.get("dim", 0) % len(shape) != 1 or any(g is None for g in given):
        return None
    settled = [g.settled() for g in given if g is not None]
    return Channels(torch.cat([g.mean for g in settled]), torch.cat([g.std for g in settled]))


def at_consumers(trace: Trace, tensors: Mapping[str, Tensor]) -> dict[int, Channels]:
    """Return what is known about the input of each consumer, by operator."""
    known = expect(trace, tensors)
    return {
        read.op: known[read.value]
        for read in trace.reads
        if read.value in known and len(known[read.value].mean) == len(read.atoms)
    }
