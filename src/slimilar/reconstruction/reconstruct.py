"""What the consumers of a removed channel do instead: the other half of pruning."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from slimilar.calibration.consumers import ConsumerLayer, find_consumers
from slimilar.calibration.program import Program
from slimilar.errors import InvalidInput, Option
from slimilar.graph.groups import Grouping
from slimilar.reconstruction.channel_mixing import Replacement, absorb, regression, restored, zero_replacement
from slimilar.reconstruction.gaussian import Channels, at_consumers
from slimilar.reconstruction.least_squares import (
    ExchangeableUnits,
    Network,
    Settings,
    Sums,
    fit_consumers,
    install,
)
from slimilar.reconstruction.methods import Reconstruction
from slimilar.surgery.rewrite import Surgery, add_bias, operate
from slimilar.utils.modules import copy_with, named_tensors

Kept = NDArray[np.bool_]
StandIns = Mapping[int, int]  # removed unit -> its representative, over all groups


def substitute(
    how: Reconstruction,
    grouping: Grouping,
    program: Program,
    tensors: Mapping[str, Tensor],
    kept: Kept,
    stand_ins: StandIns,
    batches: Sequence[Tensor] = (),
    settings: Settings | None = None,
    progress: Callable[[int, int], None] | None = None,
    exchange: ExchangeableUnits | None = None,
) -> Network:
    """Return the weights of the original's shapes in which consumers make up for the units that are not kept."""
    consumers = find_consumers(program.trace, grouping, program)
    plain = {name: t.detach() for name, t in tensors.items()}
    if how is Reconstruction.LEAST_SQUARES:
        sums = _sums(program, grouping, kept, consumers)
        return fit_consumers(program, consumers, plain, kept, batches, settings, progress, exchange, sums)
    network = Network(plain, dict(plain), kept=kept)
    expected = how in (Reconstruction.MEAN, Reconstruction.GAUSSIAN)
    known = at_consumers(program.trace, tensors) if expected else {}
    for consumer in consumers:
        stays = np.append(kept, True)[consumer.units]
        if stays.all():
            continue
        weight = network.pruned[consumer.weight].movedim(consumer.weight_axis, 1)
        channels = known.get(consumer.op)
        spread = channels.covariance() if channels is not None and how is Reconstruction.GAUSSIAN else None
        stand_in = _stand_in(how, consumer, stand_ins, channels, spread)
        new, shift = absorb(weight, consumer, stays, stand_in, weight.dtype)
        if channels is not None and spread is not None:
            new, shift = restored(weight, new, consumer, channels.expectation(), spread)
        install(program, network, consumer, new.movedim(1, consumer.weight_axis), shift)
    return network


def _sums(program: Program, grouping: Grouping, kept: Kept, consumers: Sequence[ConsumerLayer]) -> Sums:
    """Return the operators that sum over removed channels and have no weight that is fitted: norms, products."""
    fitted, units = {consumer.op for consumer in consumers}, np.append(grouping.unit_of, -1)
    stays = np.append(kept, True)
    found: dict[int, list[tuple[int, int, NDArray[np.int64]]]] = {}
    for fact in program.trace.summing:
        if fact.op not in fitted and not stays[units[fact.atoms]].all():
            found.setdefault(fact.op, []).append((fact.value, fact.axis, units[fact.atoms]))
    return found


def _stand_in(
    how: Reconstruction,
    consumer: ConsumerLayer,
    stand_ins: StandIns,
    channels: Channels | None,
    spread: Tensor | None,
) -> Replacement:
    """Return how removed positions of a consumer are replaced by kept ones."""
    if how is Reconstruction.MERGE:
        return lambda kept, removed: _merged(consumer, kept, removed, stand_ins)
    if channels is None:
        return zero_replacement
    mean = channels.expectation()
    if spread is not None:
        return regression(mean, spread, 1e-2)
    return lambda kept, removed: (None, mean[removed])


def _merged(
    consumer: ConsumerLayer, kept: Tensor, removed: Tensor, stand_ins: StandIns
) -> tuple[Tensor, Tensor]:
    """Let each removed position be read from the same place of the unit that stands in for it (Eq. 6)."""
    matrix = torch.zeros(len(removed), len(kept), dtype=torch.float64)
    column = {int(p): i for i, p in enumerate(kept)}
    for row, p in enumerate(removed.tolist()):
        unit = int(consumer.units[p])
        if unit not in stand_ins:
            raise InvalidInput(
                Option("reconstruction", "merge"),
                " needs a criterion that names a representative for each removed channel (similarity), got one that "
                "ranks channels one by one",
            )
        turn = int(np.flatnonzero(np.flatnonzero(consumer.units == unit) == p)[0])
        places = np.flatnonzero(consumer.units == stand_ins[unit])
        if turn < len(places) and int(places[turn]) in column:
            matrix[row, column[int(places[turn])]] = 1.0
    return matrix, torch.zeros(len(removed), dtype=torch.float64)


def rebuild(
    model: nn.Module, network: Network, consumers: Sequence[ConsumerLayer], done: Surgery
) -> tuple[nn.Module, Surgery]:
    """Return the smaller model with the network's weights, and the surgery that now may add biases.

    A constant stays out of the network where no module of torch's own can hold it as a bias.
    """
    held = named_tensors(model)
    changed = {n: t.to(held[n].dtype) for n, t in network.pruned.items() if t is not network.original[n]}
    full = copy_with(model, changed)
    gained, indices = set(), dict(done.indices)
    for consumer in consumers:
        if consumer.op not in network.biases:
            continue
        module = full.get_submodule(consumer.module)
        if not isinstance(module, nn.modules.conv._ConvNd | nn.Linear):
            del network.biases[consumer.op]
            continue
        add_bias(module)
        with torch.no_grad():
            module.bias += network.biases[consumer.op].to(module.weight.dtype)  # type: ignore[operator]
        gained.add(consumer.module)
        out_axis = 1 if getattr(module, "transposed", False) else 0
        if (f"{consumer.module}.weight", out_axis) in indices:
            indices[f"{consumer.module}.bias", 0] = indices[f"{consumer.module}.weight", out_axis]
    small = operate(full, replace(done, indices=indices))
    return small, replace(done, biases=done.biases | gained)
