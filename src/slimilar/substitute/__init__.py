"""What the readers of a removed channel do instead: the other half of pruning."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from slimilar.errors import InvalidInput
from slimilar.groups import Grouping
from slimilar.replay import Tape
from slimilar.rewrite import Surgery, add_bias, operate
from slimilar.substitute.absorb import StandIn, absorb, regression, restored, silence
from slimilar.substitute.expected import Channels, at_readers
from slimilar.substitute.linear import Exchange, Network, Settings, install, substitute_linear
from slimilar.substitute.sites import Site, find_sites
from slimilar.trace import Trace, copy_with

Kept = NDArray[np.bool_]
StandIns = Mapping[int, int]  # removed unit -> the kept unit that speaks for it, over all groups

__all__ = ["Exchange", "Settings", "find_sites", "rebuild", "substitute", "substitute_linear"]


def substitute(
    how: str,
    trace: Trace,
    grouping: Grouping,
    tape: Tape,
    tensors: Mapping[str, Tensor],
    kept: Kept,
    stand_ins: StandIns,
    batches: Sequence[Tensor] = (),
    settings: Settings | None = None,
    progress: Callable[[int, int], None] | None = None,
    exchange: Exchange | None = None,
) -> Network:
    """Return the weights of the original's shapes in which readers make up for the units that are not kept."""
    sites = find_sites(trace, grouping, tape)
    plain = {name: t.detach() for name, t in tensors.items()}
    if how == "linear" and batches:
        return substitute_linear(tape, sites, plain, kept, batches, settings, progress, exchange)
    network = Network(plain, dict(plain), kept=kept)
    known = at_readers(trace, tensors) if how in ("mean", "linear") else {}
    for site in sites:
        stays = np.append(kept, True)[site.units]
        if stays.all():
            continue
        weight = network.pruned[site.weight].movedim(site.weight_axis, 1)
        channels = known.get(site.op)
        new, shift = absorb(weight, site, stays, _stand_in(how, site, stand_ins, channels))
        spread = channels.covariance() if channels is not None and how == "linear" else None
        if channels is not None and spread is not None:
            new, shift = restored(weight, new, site, channels.expectation(), spread)
        install(tape, network, site, new.movedim(1, site.weight_axis), shift)
    return network


def _stand_in(how: str, site: Site, stand_ins: StandIns, channels: Channels | None) -> StandIn:
    """Return how removed positions of a reader are replaced by kept ones."""
    if how == "merge":
        return lambda kept, removed: _merged(site, kept, removed, stand_ins)
    if channels is None or how == "none":
        return silence
    mean = channels.expectation()
    spread = channels.covariance() if how == "linear" else None
    if spread is not None:
        return regression(mean, spread, 1e-2)
    return lambda kept, removed: (silence(kept, removed)[0], mean[removed])


def _merged(site: Site, kept: Tensor, removed: Tensor, stand_ins: StandIns) -> tuple[Tensor, Tensor]:
    """Let each removed position be read from the same place of the unit that stands in for it (Eq. 6)."""
    matrix, constant = silence(kept, removed)
    column = {int(p): i for i, p in enumerate(kept)}
    for row, p in enumerate(removed.tolist()):
        unit = int(site.units[p])
        if unit not in stand_ins:
            raise InvalidInput(
                'substitute "merge" needs a criterion that says who stands in for a channel (similarity), '
                "got one that ranks channels one by one"
            )
        turn = int(np.flatnonzero(np.flatnonzero(site.units == unit) == p)[0])
        places = np.flatnonzero(site.units == stand_ins[unit])
        if turn < len(places) and int(places[turn]) in column:
            matrix[row, column[int(places[turn])]] = 1.0
    return matrix, constant


def rebuild(
    model: nn.Module, network: Network, sites: Sequence[Site], done: Surgery
) -> tuple[nn.Module, Surgery]:
    """Return the smaller model with substituted weights, and the surgery that now may add biases."""
    full = copy_with(model, {n: t for n, t in network.pruned.items() if t is not network.original[n]})
    gained, indices = set(), dict(done.indices)
    for site in sites:
        module = full.get_submodule(site.module)
        if site.op in network.biases and isinstance(module, nn.modules.conv._ConvNd | nn.Linear):
            add_bias(module)
            with torch.no_grad():
                module.bias += network.biases[site.op]  # type: ignore[operator]
            gained.add(site.module)
            out_axis = 1 if getattr(module, "transposed", False) else 0
            if (f"{site.module}.weight", out_axis) in indices:
                indices[f"{site.module}.bias", 0] = indices[f"{site.module}.weight", out_axis]
    small = operate(full, replace(done, indices=indices))
    return small, replace(done, biases=done.biases | gained)
