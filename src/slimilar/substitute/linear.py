"""Let every reader of a removed channel make up for it by least squares, in network order, from pictures.

Two versions of the network advance side by side over the same pictures: the original, and the one in which removed
channels are silent. In front of each reader both stop; its kernel on the channels that stay is fitted so that what
it writes is what the original writes there (on a residual branch: what makes the *stream* the original's); then both
go on. So each layer corrects what those before it left over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slimilar import replay
from slimilar.replay import Held, Tape, Values
from slimilar.substitute.sites import Site, is_conv, patches, pixels
from slimilar.substitute.solve import Moments, least_squares, mixing

Kept = NDArray[np.bool_]

LARGEST = 6000  # unknowns of one output channel; beyond, only channels are mixed and kernels keep their shape


@dataclass(frozen=True)
class Settings:
    """How to fit."""

    form: str = "patch"  # "patch": whole kernels; "mix": one matrix between channels
    ridge: float = 1e-3
    rows: int = 8  # samples for each unknown, at least, where there are as many
    effort: float = 3e10  # multiply-adds that more samples than that may cost at each reader
    seed: int = 0
    correct_stream: bool = True
    polish: bool = True  # fit readers that lose no channel too, once what they read has drifted


@dataclass(eq=False)
class Pair:
    """The original and the pruned network on one batch: their values so far."""

    original: Values
    pruned: Values


@dataclass(eq=False)
class Network:
    """Weights of both versions; `biases` are the constants that no bias or batch norm could take."""

    original: dict[str, Tensor]
    pruned: dict[str, Tensor]
    biases: dict[int, Tensor] = field(default_factory=dict)  # site operator -> constant to add to its output


def substitute_linear(
    tape: Tape,
    sites: Sequence[Site],
    tensors: dict[str, Tensor],
    kept: Kept,
    batches: Sequence[Tensor],
    settings: Settings | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Network:
    """Return weights in which the readers make up for the units that are not kept.

    The weights have the original's shapes; those of removed channels are zero.
    """
    settings = settings or Settings()
    network = Network(dict(tensors), dict(tensors))
    touched = [s for s in sites if settings.polish or not _stays(s, kept).all()]
    pairs = [Pair(replay.start(tape, [b]), replay.start(tape, [b])) for b in batches]
    position = 0
    with torch.no_grad():
        for i, site in enumerate(touched):
            for pair in pairs:
                _advance(tape, network, pair, position, site.op)
            position = site.op
            _fit(tape, network, pairs, site, _stays(site, kept), settings)
            if progress is not None:
                progress(i + 1, len(touched))
    return network


def _stays(site: Site, kept: Kept) -> Kept:
    found: Kept = np.append(kept, True)[site.units]
    return found


def _advance(tape: Tape, network: Network, pair: Pair, start: int, stop: int) -> None:
    """Run both versions up to an operator; as long as they are the same, only one of them."""
    for k in range(start, stop):
        play = tape.plays[k]
        same = all(pair.original[v] is pair.pruned[v] for v in play.inputs) and all(
            network.original[n] is network.pruned[n] for n in play.held
        )
        replay.play_one(tape, k, pair.original, network.original)
        if same and k not in network.biases:
            for v in play.outputs:
                pair.pruned[v] = pair.original[v]
        else:
            replay.play_one(tape, k, pair.pruned, network.pruned)
            if k in network.biases:
                replay.add_constant(tape, k, pair.pruned, network.biases[k])
        for v in {*play.inputs, *play.outputs}:
            if tape.last_use[v] <= k:
                pair.original.pop(v, None)
                pair.pruned.pop(v, None)


def _fit(
    tape: Tape, network: Network, pairs: Sequence[Pair], site: Site, stays: Kept, settings: Settings
) -> None:
    """Replace the weights of one reader."""
    if stays.all() and all(p.original[site.value] is p.pruned[site.value] for p in pairs):
        return
    weight = network.pruned[site.weight].movedim(site.weight_axis, 1)  # (out, in, taps...)
    play = tape.plays[site.op]
    conv = is_conv(play) and site.weight_axis == 1 and site.plain and weight.ndim in (3, 4)
    linear = "mm" in play.func.name() and site.weight_axis == 1 and site.plain and weight.ndim == 2
    kept_index = torch.from_numpy(np.flatnonzero(stays))
    unknowns = len(kept_index) * (weight[0, 0].numel() if conv else 1)
    if (conv or linear) and unknowns <= LARGEST and settings.form == "patch":
        new, shift = _fit_patches(tape, network, pairs, site, weight, kept_index, settings, conv)
    else:
        new, shift = _fit_mixing(network, pairs, site, weight, stays, settings)
    install(tape, network, site, new.movedim(1, site.weight_axis), shift)
    _refresh(tape, network, pairs, site)


def _target(tape: Tape, network: Network, pair: Pair, site: Site, correct: bool) -> Tensor:
    """Return what the reader should write: what the original writes, plus what its stream has lost."""
    ahead = dict(pair.original)
    replay.play_one(tape, site.op, ahead, network.original)
    out = ahead[tape.plays[site.op].outputs[0]]
    if not correct or site.add is None:
        return out
    try:
        lost = replay.peek(tape, site.add[1], pair.original, network.original) - replay.peek(
            tape, site.add[1], pair.pruned, network.pruned
        )
    except KeyError:  # the other branch needs this very reader
        return out
    if site.norm is None:
        return out + lost if lost.shape == out.shape else out
    scale = scale_of(tape, network.original, site.norm)
    scale = torch.where(
        scale.abs() > 1e-2 * scale.abs().max(), scale, torch.inf
    )  # a silent channel cannot mend it
    return out + lost / scale.reshape([1, -1] + [1] * (out.ndim - 2))


def scale_of(tape: Tape, tensors: Mapping[str, Tensor], norm: int) -> Tensor:
    """Return the factor by which a batch norm multiplies each channel."""
    play = tape.plays[norm]
    gamma, variance = (tensors[a.name] if isinstance(a, Held) else None for a in (play.args[1], play.args[4]))
    if variance is None:
        return torch.ones(1) if gamma is None else torch.ones_like(gamma)
    spread: Tensor = (variance + play.args[7]).sqrt()
    return spread.reciprocal() if gamma is None else gamma / spread


def _fit_patches(
    tape: Tape, network: Network, pairs: Sequence[Pair], site: Site, weight: Tensor, kept: Tensor,
    settings: Settings, conv: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Least squares of the whole kernel over patches."""
    taps = tuple(weight.shape[2:])
    size = len(kept) * int(np.prod(taps)) if conv else len(kept)
    moments = Moments(size + weight.shape[0])
    generator = torch.Generator().manual_seed(settings.seed + site.op)
    each = -(
        -int(max(settings.rows * size, settings.effort / size**2)) // len(pairs)
    )  # rows from every batch
    for pair in pairs:
        target = _target(tape, network, pair, site, settings.correct_stream)
        x = pair.pruned[site.value].index_select(site.axis, kept)
        for rows_x, rows_y in _rows(tape, site, x, target, taps, each, conv, generator):
            moments.add(torch.cat([rows_x, rows_y], 1))
    covariance, mean = moments.covariance(), moments.mean()
    prior = weight.index_select(1, kept).reshape(weight.shape[0], -1).T.double()
    fitted = least_squares(covariance[:size, :size], covariance[:size, size:], prior, settings.ridge)
    shift = mean[size:] - mean[:size] @ fitted
    new = torch.zeros_like(weight)
    new[:, kept] = fitted.T.reshape(weight.shape[0], len(kept), *taps).to(weight.dtype)
    bias = network.original[site.bias] if site.bias is not None else 0.0
    return new, shift.to(weight.dtype) - bias


def _rows(
    tape: Tape, site: Site, x: Tensor, target: Tensor, taps: tuple[int, ...], most: int, conv: bool,
    generator: torch.Generator,
) -> Sequence[tuple[Tensor, Tensor]]:  # fmt: skip
    """Return samples of a reader's input and of its target, in pieces that fit into memory."""
    if not conv:
        rows_x, rows_y = x.movedim(site.axis, -1).flatten(0, -2), target.flatten(0, -2)
        pick = torch.randperm(len(rows_x), generator=generator)[:most]
        return [(rows_x[pick], rows_y[pick])]
    places = int(np.prod(target.shape[2:]))
    per_picture = max(1, min(places, -(-most // len(x))))
    found = []
    step = max(1, 4_000_000 // max(1, per_picture * x.shape[1] * int(np.prod(taps))))
    for first in range(0, len(x), step):
        chosen = torch.randperm(places, generator=generator)[:per_picture]
        part = x[first : first + step]
        rows_y = target[first : first + step].flatten(2)[:, :, chosen].transpose(1, 2).flatten(0, 1)
        found.append((patches(part, tape.plays[site.op], taps, chosen), rows_y))
    return found


def _fit_mixing(
    network: Network, pairs: Sequence[Pair], site: Site, weight: Tensor, stays: Kept, settings: Settings
) -> tuple[Tensor, Tensor]:
    """One matrix between channels: every removed channel is a combination of the kept ones."""
    generator = torch.Generator().manual_seed(settings.seed + site.op)
    moments = Moments(len(site.units))
    for pair in pairs:
        moments.add(pixels(pair.pruned[site.value], site.axis, 100_000 // len(pairs), generator))
    return absorb(weight, site, stays, regression(moments.mean(), moments.covariance(), settings.ridge))


StandIn = Callable[
    [Tensor, Tensor], tuple[Tensor, Tensor]
]  # kept and removed positions -> matrix and constant


def regression(mean: Tensor, covariance: Tensor, strength: float) -> StandIn:
    """Let removed positions be the best combination of kept ones plus a constant."""

    def stand_in(kept: Tensor, removed: Tensor) -> tuple[Tensor, Tensor]:
        matrix = mixing(covariance, kept, removed, strength)
        return matrix, mean[removed] - matrix @ mean[kept]

    return stand_in


def silence(kept: Tensor, removed: Tensor) -> tuple[Tensor, Tensor]:
    """Let removed positions say nothing."""
    zeros = torch.zeros(len(removed), len(kept), dtype=torch.float64)
    return zeros, zeros.new_zeros(len(removed))


def absorb(weight: Tensor, site: Site, stays: Kept, stand_in: StandIn) -> tuple[Tensor, Tensor]:
    """Return a kernel (out, in, taps...) that reads stand-ins for removed channels, and the constant left over."""
    new = weight.double().flatten(2) if weight.ndim > 2 else weight.double()[..., None].clone()
    new = new.clone()
    shift = torch.zeros(weight.shape[0], dtype=torch.float64)
    index = torch.from_numpy(site.weight_index)
    for outputs, positions in site.blocks(weight.shape[0]):
        kept, removed = (torch.from_numpy(positions[stays[positions] == s]) for s in (True, False))
        if len(removed) == 0:
            continue
        part = new[outputs]
        gone = part[:, index[removed]]
        if len(kept):
            matrix, constant = stand_in(kept, removed)
            part[:, index[kept]] += torch.einsum("ort,rk->okt", gone, matrix)
            shift[outputs] += gone.sum(2) @ constant
        part[:, index[removed]] = 0
    return new.reshape(weight.shape).to(weight.dtype), shift.to(weight.dtype)


def install(tape: Tape, network: Network, site: Site, weight: Tensor, shift: Tensor) -> None:
    """Put a kernel into place, and its constant into the bias, the batch norm behind it, or a new bias."""
    network.pruned[site.weight] = weight.contiguous()
    if site.bias is not None:
        network.pruned[site.bias] = network.original[site.bias] + shift
        return
    mean = getattr(tape.plays[site.norm].args[3], "name", None) if site.norm is not None else None
    if mean is not None:
        network.pruned[mean] = network.original[mean] - shift
    else:
        network.biases[site.op] = shift


def _refresh(tape: Tape, network: Network, pairs: Sequence[Pair], site: Site) -> None:
    for pair in pairs:
        replay.refresh(tape, site.op, site.value, pair.pruned, network.pruned)
