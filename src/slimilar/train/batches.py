"""The batches of an epoch: the same for every number of processes, and after every restart."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from slimilar.data.source import DRAWS, ImageSource
from slimilar.errors import DataError, InvalidInput


class Batch(NamedTuple):
    """One process's share of a batch; ``total`` counts the images of all processes."""

    images: Tensor
    labels: Tensor
    total: int


def mixed_seed(*numbers: int) -> int:
    """Return one seed for several numbers; neighbouring numbers give unrelated seeds.

    >>> mixed_seed(0, 1) == mixed_seed(1, 0)
    False
    """
    state = np.random.SeedSequence(list(numbers)).generate_state(2)
    return int(state[0]) << 31 ^ int(state[1])


@dataclass(frozen=True)
class Epoch(Dataset[Batch]):
    """Item i is batch i of an epoch, a pure function of seed, epoch and i; the share of one process.

    The last batch may be smaller; it is left out where it has fewer than two images for each process,
    because batch norm has no variance of one value.
    """

    source: ImageSource
    batch_size: int
    seed: int
    epoch: int
    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        if self.batch_size < 2 * self.world_size:
            need = f"at least two images for each of {self.world_size} processes"
            raise InvalidInput(f"batch_size must give {need}, got {self.batch_size}; make it larger")
        if len(self) == 0:
            raise DataError(
                f"there must be at least two training images for each process, got {len(self.source)}"
            )

    def __len__(self) -> int:
        whole, rest = divmod(len(self.source), self.batch_size)
        return whole + (rest >= 2 * self.world_size)

    @cached_property
    def order(self) -> Tensor:
        return torch.randperm(len(self.source), generator=_generator(self.seed, self.epoch))

    def __getitem__(self, step: int) -> Batch:
        indices = self.order[step * self.batch_size : (step + 1) * self.batch_size]
        # Drawn for all processes before each takes its share, so that their number changes nothing.
        draws = torch.rand(len(indices), DRAWS, generator=_generator(self.seed, self.epoch, step))
        mine = slice(self.rank, None, self.world_size)
        images, labels = self.source.batch(indices[mine], draws[mine])
        return Batch(images, labels, len(indices))


def _generator(*numbers: int) -> torch.Generator:
    return torch.Generator().manual_seed(mixed_seed(*numbers))


@dataclass(frozen=True)
class EvaluationPass(Dataset[Batch]):
    """Item i is batch i of all images in order, without augmentation; the share of one process."""

    source: ImageSource
    batch_size: int
    rank: int = 0
    world_size: int = 1

    def __len__(self) -> int:
        return -(-len(self.source) // self.batch_size)

    def __getitem__(self, step: int) -> Batch:
        stop = min((step + 1) * self.batch_size, len(self.source))
        indices = torch.arange(step * self.batch_size, stop)
        mine = indices[self.rank :: self.world_size]
        if not len(mine):  # fewer images than processes are left
            return Batch(torch.empty(0), torch.empty(0), len(indices))
        return Batch(*self.source.batch(mine), len(indices))


def batches(epoch: Epoch | EvaluationPass, start: int = 0) -> Iterator[Batch]:
    """Yield the batches of an epoch from ``start`` on, made ahead by worker processes where that pays."""
    steps = range(start, len(epoch))
    if not epoch.source.workers:
        return (epoch[step] for step in steps)
    ahead = DataLoader(_ErrorsAsText(epoch), batch_size=None, sampler=steps, num_workers=epoch.source.workers)
    return map(_raised, ahead)


@dataclass(frozen=True)
class _ErrorsAsText(Dataset[Batch | str]):
    """Returns an error as its message; DataLoader would wrap it in a worker's traceback."""

    epoch: Epoch | EvaluationPass

    def __getitem__(self, step: int) -> Batch | str:
        try:
            return self.epoch[step]
        except DataError as error:
            return str(error)


def _raised(batch: Batch | str) -> Batch:
    if isinstance(batch, str):
        raise DataError(batch)
    return batch
