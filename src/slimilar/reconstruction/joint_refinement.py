r"""After least squares, let all layers of the smaller model come closer to the original together.

Least squares fits one consumer after the other, and the filters that stay compute what they did. Here all weights move,
by gradient steps on unlabelled images and shifted copies of them, so that every consumer k reads what it read in the
original, on the channels c that stay:
$$\min \sum_k \frac{\sum_c F_{kc}\, E (\hat x_{kc} - x_{kc})^2}{\sum_c F_{kc} \operatorname{Var} x_{kc}},$$
with the Fisher information $F_{kc}$ of a channel: how much an error there changes the output. Class scores are not
matched: those of a few hundred images would be learnt by heart. A quarter of the images is held out, and what was
learnt is kept only if the output is closer to the original's on these.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from slimilar.calibration import replay
from slimilar.calibration.batches import full_batches
from slimilar.calibration.consumers import ConsumerLayer, input_slot
from slimilar.calibration.divergence import divergence_by_image
from slimilar.calibration.fisher import are_class_scores, fisher_of_values
from slimilar.calibration.holdout import Holdout
from slimilar.calibration.program import Program, record, resized_example
from slimilar.planning.cut import Cut
from slimilar.reconstruction.least_squares import Network
from slimilar.surgery.rewrite import Kept, Surgery
from slimilar.utils.modules import copy_with, named_parameters, named_tensors
from slimilar.utils.precision import exact, widened
from slimilar.utils.pytree import Example

EFFORT = 5e12  # FLOPs that the steps may take; a network for which that is too little is left as it is
_MOST, _FEWEST = 16_384, 3_000  # images that steps are taken on, with repetitions
_EPOCHS = 16  # of the fitted images, at most
_BATCH = 16
_MEASURED = (32, 512)  # held-out images: with fewer there is nothing to go by, more are not looked at
_INFORMING = 256  # images that Fisher information is taken from
_SHIFT = 8  # an image is shifted by up to this part of its height and width
_RATES = (0.2, 0.05)  # of the steps: if the first does harm, the second
_FAN_IN = 256  # a rate is divided by the root of the inputs of an output, at least so many
_WARM_UP = 1 / 8  # of the steps
_EARLY = 4  # after this part of the steps the output must not be much worse
_WORSE = 1.5


@dataclass(frozen=True, eq=False)
class Refinement:
    """A model whose layers were refined together, and the divergence on held-out images before and after."""

    model: nn.Module
    changed: Mapping[str, Tensor]  # its new tensors
    before: float
    after: float


def affordable_visits(cut: Cut) -> int:
    """Return on how many images, with repetitions, steps are affordable; none where they are too few to be of use."""
    found = min(_MOST, int(EFFORT / max(1, cut.before.flops + 3 * cut.flops)))
    return found if found >= _FEWEST else 0


def image_visits(cut: Cut, images: Holdout) -> int:
    """Return on how many images, with repetitions, steps are taken; on none without enough to measure on."""
    return min(affordable_visits(cut), _EPOCHS * images.fitted) if images.measured >= _MEASURED[0] else 0


def refine_together(
    program: Program,
    network: Network,
    consumers: Sequence[ConsumerLayer],
    small: nn.Module,
    done: Surgery,
    example: Example,
    images: Holdout,
    visits: int,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Refinement | None:
    """Return the smaller model after steps of all its layers, or None if it does not come closer to the original."""
    size = min(_BATCH, program.batch_size, images.measured)
    wide = replay.resized(program, size)
    narrow, steps = record(small, resized_example(example, size)), max(1, visits // size)
    names = _movable(narrow, small, done, network)
    check = full_batches(torch.cat(images.measure)[: _MEASURED[1]], size)
    wanted = [_outputs(wide, network.original, batch) for batch in check]

    def divergence(tensors: replay.Tensors) -> float:
        given = [_outputs(narrow, tensors, batch) for batch in check]
        gaps = [divergence_by_image(a, b) for a, b in zip(given, wanted, strict=True)]
        return float(torch.cat(gaps).mean())

    start = widened(named_tensors(small))
    before = divergence(start)
    reads = tuple(_read_by_both(wide, narrow, consumers, network.kept))
    informing = full_batches(torch.cat(images.fit)[:_INFORMING], size)
    loss = _Loss(
        wide,
        network.original,
        narrow,
        reads,
        _channel_weights(wide, network.original, reads, informing, seed),
    )
    for rate in _RATES if names else ():
        tensors = start | {name: start[name].clone().requires_grad_() for name in names}
        after = before
        for i, _ in enumerate(_steps(loss, tensors, names, _drawn(images, size, seed), rate, steps)):
            if i + 1 in (max(1, steps // _EARLY), steps):
                after = divergence(tensors)
                if not after <= _WORSE * before:
                    break
            if progress is not None:
                progress(i + 1, steps)
        if after < before:
            held = named_tensors(small)
            changed = {name: tensors[name].detach().to(held[name]) for name in names}
            return Refinement(copy_with(small, changed), changed, before, after)
    return None


def enter(changed: Mapping[str, Tensor], network: Network, done: Surgery) -> None:
    """Put new weights of the smaller model where they belong in the network of the original's shapes."""
    for name, new in changed.items():
        places = {axis: kept for (tensor, axis), kept in done.indices.items() if tensor == name}
        network.pruned[name] = _scattered(network.pruned[name], new, places)


def _scattered(old: Tensor, new: Tensor, places: Mapping[int, NDArray[np.int64]]) -> Tensor:
    """Return a tensor with new numbers at some places along some axes.

    >>> _scattered(torch.zeros(2, 3), torch.ones(2, 1), {1: np.array([2])}).tolist()
    [[0.0, 0.0, 1.0], [0.0, 0.0, 1.0]]
    """
    along = [
        torch.from_numpy(places[axis]) if axis in places else torch.arange(size)
        for axis, size in enumerate(old.shape)
    ]
    found = old.clone()
    found[torch.meshgrid(*(a.to(old.device) for a in along), indexing="ij")] = new.to(old)
    return found


def _movable(narrow: Program, small: nn.Module, done: Surgery, network: Network) -> list[str]:
    """Return the parameters that steps may change: those that are a part of the original's, and nothing else.

    A weight that is computed from several tensors (weight norm, spectral norm) stays, and so does a bias that a layer
    has gained.
    """
    computed = {name for norm in done.weight_norms for name in (norm.direction, norm.magnitude)}
    used = {name for instruction in narrow.instructions for name in instruction.held}
    return [
        name
        for name, t in named_parameters(small).items()
        if name in used and name in network.pruned and t.is_floating_point()
        and name not in computed and "parametrizations." not in name
    ]  # fmt: skip


@torch.no_grad()
def _outputs(program: Program, tensors: replay.Tensors, batch: Tensor) -> list[Tensor]:
    values = replay.start(program, [batch])
    replay.run(program, values, tensors)
    return [values[v] for v in program.outputs]


@dataclass(frozen=True, eq=False)
class ReadByBoth:
    """What a consumer reads: operator and value of either program, and the positions along an axis that stay."""

    wide: tuple[int, int]
    narrow: tuple[int, int]
    axis: int
    stays: Tensor


def _read_by_both(
    wide: Program, narrow: Program, consumers: Sequence[ConsumerLayer], kept: Kept
) -> Iterator[ReadByBoth]:
    """Yield what consumers read of the images; of several that read the same, what the first does."""
    where, seen = {place: k for k, place in enumerate(_places(narrow))}, set(wide.inputs)
    places = _places(wide)
    for consumer in consumers:
        there = where.get(places[consumer.op])
        value = None if there is None else input_slot(narrow.instructions[there])
        if there is None or value is None or consumer.value in seen:
            continue
        seen.add(consumer.value)
        stays = torch.from_numpy(np.flatnonzero(np.append(kept, True)[consumer.units])).to(wide.device)
        yield ReadByBoth((consumer.op, consumer.value), (there, value), consumer.axis, stays)


def _places(program: Program) -> list[tuple[str, str, int]]:
    """Return for every operator its module, its kind, and its turn there: the same in models of other widths."""
    turns: Counter[tuple[str, str]] = Counter()
    found = []
    for op in program.trace.ops:
        kind = (op.module, "aten.mm" if op.name == "aten.addmm" else op.name)  # with a bias it is the other
        found.append((*kind, turns[kind]))
        turns[kind] += 1
    return found


def _channel_weights(
    wide: Program, original: replay.Tensors, reads: Sequence[ReadByBoth], batches: Sequence[Tensor], seed: int
) -> list[Tensor]:
    """Return for what every consumer reads, by channel: Fisher information relative to that of its whole variance."""
    axes = {r.wide[1]: r.axis for r in reads}
    fisher = fisher_of_values(wide, axes, original, batches, seed)
    with torch.no_grad():
        values = list(_passing(wide, original, batches[0], [r.wide for r in reads]))[: len(reads)]
    found = []
    for read, x in zip(reads, values, strict=True):
        others = [a for a in range(x.ndim) if a != read.axis]
        variance = exact(x).var(others)
        weight = fisher.get(read.wide[1], torch.zeros_like(variance))
        if not weight.isfinite().all() or not (weight * variance).sum() > 0:
            weight = torch.ones_like(variance)  # nothing is known: all channels count alike
        total = (weight * variance).sum().clamp_min(torch.finfo(variance.dtype).tiny)
        found.append((weight / total).to(x)[read.stays])  # some devices have no float64: back to theirs
    return found


@dataclass(frozen=True, eq=False)
class _Loss:
    """How far what consumers read, and outputs other than class scores, are from the original's."""

    wide: Program
    original: replay.Tensors
    narrow: Program
    reads: Sequence[ReadByBoth]
    weights: Sequence[Tensor]  # of the channels of each

    def of(self, tensors: replay.Tensors, batch: Tensor) -> Tensor:
        """Return the squared error relative to the variance, summed up."""
        with torch.no_grad():
            wanted = list(_passing(self.wide, self.original, batch, [r.wide for r in self.reads]))
        given = _passing(self.narrow, tensors, batch, [r.narrow for r in self.reads])
        total = torch.zeros((), device=self.wide.device)
        for i, (x, y) in enumerate(zip(given, wanted, strict=True)):
            if i < len(self.reads):
                total = total + self._misread(i, x, y)
            elif y.is_floating_point() and not are_class_scores(y):
                spread = y.var().clamp_min(torch.finfo(y.dtype).tiny)
                total = total + (x - y).square().mean() / spread
        return total

    def _misread(self, i: int, x: Tensor, y: Tensor) -> Tensor:
        """Return the error of what consumer i reads: the mean over images and places, summed over channels."""
        axis, stays = self.reads[i].axis, self.reads[i].stays
        if len(stays) < y.shape[axis]:
            y = y.index_select(axis, stays)
        if x.shape != y.shape:  # it chose other channels, or reads something else
            return torch.zeros((), device=y.device)
        errors = (x - y).square().mean([a for a in range(y.ndim) if a != axis])
        return (errors * self.weights[i]).sum()


def _passing(
    program: Program, tensors: replay.Tensors, batch: Tensor, reads: Sequence[tuple[int, int]]
) -> Iterator[Tensor]:
    """Yield values right before operators, in the order in which these run, and the outputs."""
    values, position = replay.start(program, [batch]), 0
    for op, value in reads:
        replay.run(program, values, tensors, position, op)
        position = op
        yield values[value]
    replay.run(program, values, tensors, position)
    yield from (values[v] for v in program.outputs)


def _drawn(images: Holdout, size: int, seed: int) -> Iterator[Tensor]:
    """Yield batches of the fitted images, shifted, epoch after epoch, each in another order."""
    fitted, generator = torch.cat(images.fit), torch.Generator().manual_seed(seed)
    while True:
        for places in full_batches(torch.randperm(len(fitted), generator=generator), min(size, len(fitted))):
            yield _shifted(fitted[places], generator)


def _shifted(batch: Tensor, generator: torch.Generator) -> Tensor:
    """Return images shifted by a few pixels, each by another number, with reflected borders; others as they are."""
    if batch.ndim != 4 or not batch.is_floating_point() or min(batch.shape[2:]) < _SHIFT:
        return batch
    height, width = batch.shape[2:]
    most = height // _SHIFT, width // _SHIFT
    padded = functional.pad(batch, (most[1], most[1], most[0], most[0]), mode="reflect")
    corners = torch.stack(
        [torch.randint(2 * m + 1, (len(batch),), generator=generator) for m in most], 1
    ).tolist()
    return torch.stack(
        [x[:, i : i + height, j : j + width] for x, (i, j) in zip(padded, corners, strict=True)]
    )


def _steps(
    loss: _Loss, tensors: replay.Tensors, names: Sequence[str], batches: Iterator[Tensor], rate: float, steps: int
) -> Iterator[int]:  # fmt: skip
    """Take steps, and yield the number of each. A step changes what a layer writes by a share that all have alike."""
    groups = [{"params": [tensors[name]], "share": _share(tensors[name])} for name in names]
    optimiser = torch.optim.Adam(groups, betas=(0.9, 0.99))
    for i in range(steps):
        pace = min(1.0, (i + 1) / (_WARM_UP * steps)) * (1 + math.cos(math.pi * i / steps)) / 2
        for group in optimiser.param_groups:
            group["lr"] = rate * pace * group["share"]
        with torch.enable_grad():
            optimiser.zero_grad()
            loss.of(tensors, next(batches)).backward()
        optimiser.step()
        yield i


def _share(tensor: Tensor) -> float:
    """Return the root mean square of a tensor, divided by the root of the number of inputs of an output."""
    inputs = tensor[0].numel() if tensor.ndim > 1 else 1
    found: float = tensor.detach().square().mean().sqrt().item() / max(inputs, _FAN_IN) ** 0.5
    return found
