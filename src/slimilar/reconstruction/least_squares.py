"""Refit the consumers of removed channels by least squares on images, in the order of the network.

The original and the pruned network run side by side on the same images. Before each consumer both stop. Its kernel on
the kept channels is fitted so that its output matches the original's; on a residual branch, so that the *stream*
matches. Then both run on. So each layer also corrects the errors of earlier layers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slimilar.calibration import replay
from slimilar.calibration.consumers import ConsumerLayer, is_conv, pixels, pixels_of_a_channel, unflattened
from slimilar.calibration.fisher import fisher_weights
from slimilar.calibration.program import Held, Program
from slimilar.reconstruction.activation_aware import FollowingActivation
from slimilar.reconstruction.channel_mixing import Replacement, absorb, regression
from slimilar.reconstruction.patches import (
    HELD,
    PAIRED,
    ChannelChoice,
    Sampler,
    Samples,
    fit,
    held_out_rows,
    image_numbers,
)
from slimilar.reconstruction.ridge import held_out_strength, merged, removed_channel_statistics
from slimilar.reconstruction.solvers import SampleMoments
from slimilar.reconstruction.targets import Pair, following_activation, scale_of, target_of
from slimilar.utils.devices import room
from slimilar.utils.precision import exact

Kept = NDArray[np.bool_]

_AHEAD = 55_000_000  # numbers that the original wrote ahead of the pruned network, of all batches
LIVE = 170_000_000  # numbers that both versions hold; where activations are large, some images join later
_GROWN = 420_000_000  # and that they may come to hold at a later consumer
_PASSES = 32  # multiply-adds that one look at an output is worth: it is memory that takes the time
_CAREFUL = 1.0  # the ridge where a single image leaves nothing to measure on
LARGEST = 6000  # unknowns of one output channel; beyond, only channels are mixed and kernels keep their shape


@dataclass(frozen=True)
class Settings:
    """How to fit."""

    # "patch": whole kernels; "mix": one matrix between channels; "quick": whole ones of one tap.
    form: Literal["patch", "mix", "quick"] = "patch"
    ridge: float | None = None  # times the mean variance; without it, by held-out images
    # What the ridge pulls to: "kernel", as it was; "mix": with stand-ins for removed channels.
    prior: Literal["kernel", "mix"] = "mix"
    rows: int = 8  # samples for each unknown, at least, where there are as many
    effort: float = 3e10  # multiply-adds that more samples than that may cost at each consumer
    seed: int = 0
    correct_stream: bool = True
    steps: int = 3  # towards what counts behind an activation, after least squares
    # Who chooses again which channels it reads: "none", "sums" (residual branches), "all".
    choose: Literal["none", "sums", "all"] = "sums"
    distinct: int = 1 << 30  # batches; those behind are horizontal flips of the first ones
    mirror: bool = True  # show horizontal flips too, if the network takes them for the same
    polish: bool = True  # fit consumers that lose no channel too, once what they read has drifted
    together: bool = True  # then refine all layers together, where that is affordable


@dataclass(frozen=True, eq=False)
class ExchangeableUnits:
    """Units whose choice a consumer may revise: `removed` ones may come back, `removable` ones may be removed."""

    removed: Kept
    removable: Kept


@dataclass(frozen=True, eq=False)
class InputPositions:
    """The positions of a consumer's input: which stay, which were removed but may come back, which must stay."""

    stays: Kept
    spare: Kept
    fixed: Kept


Sums = Mapping[
    int, Sequence[tuple[int, int, NDArray[np.int64]]]
]  # operator that sums over channels and is not fitted -> value, axis, units


@dataclass(eq=False)
class Network:
    """Weights of both versions; `biases` are the constants that no bias or batch norm could take."""

    original: dict[str, Tensor]
    pruned: dict[str, Tensor]
    biases: dict[int, Tensor] = field(
        default_factory=dict
    )  # consumer operator -> constant to add to its output
    narrow: dict[int, Tensor] = field(
        default_factory=dict
    )  # convolution -> the channels of its input that it reads
    fisher: dict[int, Tensor] = field(default_factory=dict)  # consumer operator -> that of its outputs
    kept: Kept = field(default_factory=lambda: np.zeros(0, np.bool_))  # units that stayed in the end
    sums: Sums = field(default_factory=dict)


def fit_consumers(
    program: Program,
    consumers: Sequence[ConsumerLayer],
    tensors: dict[str, Tensor],
    kept: Kept,
    batches: Sequence[Tensor],
    settings: Settings | None = None,
    progress: Callable[[int, int], None] | None = None,
    exchange: ExchangeableUnits | None = None,
    sums: Sums | None = None,
) -> Network:
    """Return weights in which the consumers make up for the units that are not kept.

    The weights have the original's shapes; those of removed channels are zero. With `exchange`, consumers choose again
    among some units, as many as were kept: `Network.kept` tells which. In `sums` removed units count as zero.
    """
    settings = settings or Settings()
    network = Network(dict(tensors), dict(tensors), kept=kept.copy(), sums=sums or {})
    exchange = exchange or ExchangeableUnits(np.zeros_like(kept), np.zeros_like(kept))
    if exchange.removed.any():
        network.fisher = fisher_weights(
            program, [s.op for s in consumers], tensors, batches[0], settings.seed
        )
    touched = [s for s in consumers if settings.polish or not _stays(s, kept).all()]
    pairs, waiting, position = [_pair(program, batches[0])], list(batches[1:]), 0
    held = program.numbers_before([s.op for s in touched])
    with torch.no_grad():
        for i, consumer in enumerate(touched):
            for pair in pairs:
                _advance(program, network, pair, position, consumer.op)
            position = consumer.op
            most = min(
                room(program.device, LIVE) // max(1, _live(pairs[0])),
                room(program.device, _GROWN) // max(1, 2 * max(held[i:])),
            )
            while waiting and len(pairs) < most:
                pairs.append(_pair(program, waiting.pop(0)))
                _advance(program, network, pairs[-1], 0, position)
            _fit(program, network, pairs, consumer, exchange, settings)
            if progress is not None:
                progress(i + 1, len(touched))
    return network


def _pair(program: Program, batch: Tensor) -> Pair:
    values = replay.start(program, [batch])
    return Pair(values, dict(values))


def _live(pair: Pair) -> int:
    """Return how many numbers both versions hold of one batch."""
    held = {id(t): t.numel() for values in (pair.original, pair.pruned) for t in values.values()}
    return sum(held.values())


def _stays(consumer: ConsumerLayer, kept: Kept) -> Kept:
    found: Kept = np.append(kept, True)[consumer.units]
    return found


def _advance(program: Program, network: Network, pair: Pair, start: int, stop: int) -> None:
    """Run both versions up to an operator; as long as they are the same, only one of them."""
    for k in range(start, stop):
        instruction = program.instructions[k]
        same = all(pair.original[v] is pair.pruned[v] for v in instruction.inputs) and all(
            network.original[n] is network.pruned[n] for n in instruction.held
        )
        if any(v not in pair.original for v in instruction.outputs):
            replay.execute(program, k, pair.original, network.original)
        if same and k not in network.biases and k not in network.sums:
            for v in instruction.outputs:
                pair.pruned[v] = pair.original[v]
        else:
            _run_pruned(program, network, pair, k)
            if k in network.biases:
                replay.add_constant(program, k, pair.pruned, network.biases[k])
        for v in {*instruction.inputs, *instruction.outputs}:
            if program.last_use[v] <= k:
                pair.original.pop(v, None)
                pair.pruned.pop(v, None)


def _run_pruned(program: Program, network: Network, pair: Pair, k: int) -> None:
    """Run an operator of the pruned network; a convolution reads only the channels that stay."""
    if k in network.sums:
        seen = dict(pair.pruned)
        for value, axis, units in network.sums[k]:
            lost = torch.from_numpy(np.flatnonzero(~np.append(network.kept, True)[units]))
            pair.pruned[value] = seen[value].index_fill(axis, lost.to(seen[value].device), 0)
        replay.execute(program, k, pair.pruned, network.pruned)
        pair.pruned.update({value: seen[value] for value, _, _ in network.sums[k]})
        return
    if k not in network.narrow:
        replay.execute(program, k, pair.pruned, network.pruned)
        return
    instruction, chosen = program.instructions[k], network.narrow[k]
    x, weight = pair.pruned[instruction.args[0].value], network.pruned[instruction.args[1].name]
    bias = None if instruction.args[2] is None else network.pruned[instruction.args[2].name]
    pair.pruned[instruction.outputs[0]] = instruction.func(
        x.index_select(1, chosen), weight.index_select(1, chosen), bias, *instruction.args[3:]
    )


def _fit(
    program: Program,
    network: Network,
    pairs: Sequence[Pair],
    consumer: ConsumerLayer,
    exchange: ExchangeableUnits,
    settings: Settings,
) -> None:
    """Replace the weights of one consumer."""
    stays = _stays(consumer, network.kept)
    if stays.all() and all(p.original[consumer.value] is p.pruned[consumer.value] for p in pairs):
        return
    weight = network.pruned[consumer.weight].movedim(consumer.weight_axis, 1)  # (out, in, taps...)
    instruction = program.instructions[consumer.op]
    conv = is_conv(instruction) and consumer.weight_axis == 1 and consumer.plain and weight.ndim in (3, 4)
    linear = (
        "mm" in instruction.func.name() and consumer.weight_axis == 1 and consumer.plain and weight.ndim == 2
    )
    positions = InputPositions(
        stays,
        np.append(exchange.removed, False)[consumer.units],
        ~np.append(exchange.removable, False)[consumer.units],
    )
    unknowns = int((stays | positions.spare).sum()) * (weight[0, 0].numel() if conv else 1)
    whole = settings.form == "patch" or (settings.form == "quick" and unknowns <= weight.shape[1])
    if (conv or linear) and 0 < unknowns <= LARGEST and whole:
        new, shift, now = _fit_patches(program, network, pairs, consumer, weight, positions, settings, conv)
        inner = consumer.units >= 0
        network.kept[consumer.units[inner]] = now[inner]
    else:
        new, shift = _fit_mixing(network, pairs, consumer, weight, stays, settings)
    install(program, network, consumer, new.movedim(1, consumer.weight_axis), shift)
    _refresh(program, network, pairs, consumer)


def _fit_patches(
    program: Program, network: Network, pairs: Sequence[Pair], consumer: ConsumerLayer, weight: Tensor,
    positions: InputPositions, settings: Settings, conv: bool,
) -> tuple[Tensor, Tensor, Kept]:  # fmt: skip
    """Least squares of the whole kernel over patches; channels that stay may be exchanged for spare ones."""
    shape, outputs = tuple(weight.shape[2:]), weight.shape[0]
    taps = int(np.prod(shape)) if conv else 1
    candidates = torch.from_numpy(np.flatnonzero(positions.stays | positions.spare))
    size = len(candidates) * taps
    gate = 2 * settings.steps * (size + _PASSES)
    rows = int(max(settings.rows * size, settings.effort / (size * size + (size + gate) * outputs)))
    held = room(program.device, HELD)
    each = -(-min(rows, held // size, PAIRED * held // HELD // (size + 2 * outputs)) // len(pairs))

    generator = torch.Generator().manual_seed(settings.seed + consumer.op)
    instruction = program.instructions[consumer.op]
    sampler = Sampler(instruction, consumer.axis, candidates, shape, conv, each, generator)
    samples = Samples((each + len(pairs[0].pruned[consumer.value])) * len(pairs))
    for number, pair in enumerate(pairs):
        target = target_of(
            program,
            consumer,
            pair,
            network.original,
            network.pruned,
            settings.correct_stream,
            settings.steps > 0,
        )
        if target.plain.numel() * len(pairs) <= _AHEAD:  # else it is made again when its turn comes
            pair.original[instruction.outputs[0]] = target.plain
        x = pair.pruned[consumer.value]
        numbers = image_numbers(number, min(settings.distinct, len(pairs)), len(x))
        sampler.draw(samples, x, target, numbers)
    likely = torch.from_numpy(np.flatnonzero(positions.stays[candidates.numpy()]))
    mixed = None
    if settings.prior == "mix" and not positions.stays.all():
        standing_in, _ = _fit_mixing(network, pairs, consumer, weight, positions.stays, settings, whole=False)
        mixed = exact(standing_in[:, candidates[likely]].reshape(outputs, -1).T)
    prior = exact(weight[:, candidates].reshape(outputs, -1).T)
    scale = prior.new_ones(1) if consumer.norm is None else scale_of(program, network.original, consumer.norm)
    fisher = network.fisher.get(consumer.op, torch.ones(outputs)).to(prior)
    behind = following_activation(program, consumer)
    fixed = torch.from_numpy(positions.fixed)[candidates]
    choice = ChannelChoice(taps, fisher, int(positions.stays.sum()), fixed, likely, mixed)
    found = fit(
        samples,
        prior,
        choice,
        None if behind is None else FollowingActivation(scale, behind[1]),
        settings.steps,
        settings.ridge,
    )
    chosen = candidates[found.chosen]
    new = torch.zeros_like(weight)
    new[:, chosen] = found.kernel.T.reshape(outputs, len(chosen), *shape).to(weight)
    bias = network.original[consumer.bias] if consumer.bias is not None else 0.0
    if conv and isinstance(instruction.args[1], Held):
        network.narrow[consumer.op] = chosen.to(weight.device)
    now = np.zeros_like(positions.stays)
    now[chosen.numpy()] = True
    return new, found.constant.to(weight) - bias, now


def _fit_mixing(
    network: Network,
    pairs: Sequence[Pair],
    consumer: ConsumerLayer,
    weight: Tensor,
    stays: Kept,
    settings: Settings,
    whole: bool = True,
) -> tuple[Tensor, Tensor]:
    """One matrix between channels: every removed channel is a combination of the kept ones.

    If not on the `whole` calibration set, no held-out image is fitted to: as a prior it is measured on them. Behind a
    large image that was flattened, the same matrix serves all its pixels, as if the layer were a convolution.
    """
    run = pixels_of_a_channel(consumer) if len(consumer.units) > LARGEST and weight.ndim == 2 else 1
    if run > 1:
        shape, weight = weight.shape, weight.reshape(len(weight), -1, run)
        new, shift = _fit_mixing(
            network, pairs, unflattened(consumer, run), weight, stays[::run], settings, whole
        )
        return new.reshape(shape), shift
    generator = torch.Generator().manual_seed(settings.seed + consumer.op)
    parts = SampleMoments(len(consumer.units)), SampleMoments(len(consumer.units))  # fitted to, and held out
    for number, pair in enumerate(pairs):
        x = pair.pruned[consumer.value]
        x = x if x.shape[consumer.axis] == len(consumer.units) else x.unflatten(1, (len(consumer.units), -1))
        held = held_out_rows(image_numbers(number, min(settings.distinct, len(pairs)), len(x)))
        for part, chosen in zip(parts, (~held, held), strict=True):
            if bool(chosen.any()):
                most = 100_000 * int(chosen.sum()) // (len(pairs) * len(x))
                part.add(pixels(x[chosen], consumer.axis, most, generator))
    return absorb(weight, consumer, stays, _regression(parts, weight, consumer, stays, settings.ridge, whole))


def _regression(
    parts: tuple[SampleMoments, SampleMoments],
    weight: Tensor,
    consumer: ConsumerLayer,
    stays: Kept,
    strength: float | None,
    whole: bool,
) -> Replacement:
    """Return stand-ins by ridge regression on all samples; its strength is given, or by the held-out part."""
    fit, held_out = parts
    if not held_out.count:
        return regression(fit.mean(), fit.covariance(), _CAREFUL if strength is None else strength)
    kept, removed = (torch.from_numpy(np.flatnonzero(stays == s)) for s in (True, False))
    if strength is None and len(kept) and len(removed):
        both = [removed_channel_statistics(m.count, m.mean(), m.covariance(), kept, removed) for m in parts]
        power = exact(weight).movedim(1, 0).flatten(1).square().sum(1)
        power = power[torch.from_numpy(consumer.weight_index)[removed]]
        zeros = power.new_zeros(len(kept), len(removed))
        strength = held_out_strength(both[0], both[1], zeros, power)[0]
    mean, covariance = merged(fit, held_out) if whole else (fit.mean(), fit.covariance())
    return regression(mean, covariance, _CAREFUL if strength is None else strength)


def install(
    program: Program, network: Network, consumer: ConsumerLayer, weight: Tensor, shift: Tensor
) -> None:
    """Put a kernel into place, and its constant into the bias, the batch norm behind it, or a new bias."""
    network.pruned[consumer.weight] = weight.contiguous()
    if consumer.bias is not None:
        network.pruned[consumer.bias] = network.original[consumer.bias] + shift
        return
    mean = (
        getattr(program.instructions[consumer.norm].args[3], "name", None)
        if consumer.norm is not None
        else None
    )
    if mean is not None:
        network.pruned[mean] = network.original[mean] - shift
    else:
        network.biases[consumer.op] = shift


def _refresh(program: Program, network: Network, pairs: Sequence[Pair], consumer: ConsumerLayer) -> None:
    for pair in pairs:
        replay.refresh(program, consumer.op, consumer.value, pair.pruned, network.pruned)
