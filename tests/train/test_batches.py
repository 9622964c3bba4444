"""Batches are the same for every number of processes, and every image is seen once."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import TensorDataset

from helpers.short_training import TRAIN
from slimilar.data import DatasetSource, Images
from slimilar.train.batches import Epoch, EvaluationPass, batches


def test_an_epoch_sees_every_image_once():
    images = Images(torch.zeros(103, 2, 2, 1, dtype=torch.uint8), torch.arange(103))
    seen = [int(i) for step in range(7) for i in Epoch(images, 16, seed=0, epoch=0)[step].labels]
    assert sorted(seen) == list(range(103))
    assert seen != list(range(103))
    other = Epoch(images, 16, seed=0, epoch=1)[0].labels
    assert not torch.equal(other, torch.tensor(seen[:16]))


@pytest.mark.parametrize(("images", "steps"), [(96, 3), (97, 3), (98, 4)])
def test_a_last_batch_of_one_is_left_out(images, steps):
    assert len(Epoch(TRAIN.first(images), 32, 0, 0)) == steps


@pytest.mark.parametrize("world", [2, 3])
def test_processes_share_a_batch(world):
    whole = Epoch(TRAIN.first(70), 32, seed=1, epoch=2)
    shares = [Epoch(TRAIN.first(70), 32, 1, 2, rank, world) for rank in range(world)]
    for step in range(len(whole)):
        for rank, share in enumerate(shares):
            assert torch.equal(share[step].images, whole[step].images[rank::world])
            assert share[step].total == len(whole[step].labels)


@pytest.mark.parametrize("world", [1, 2, 3])
def test_an_evaluation_pass_sees_every_image_once(world):
    images = Images(torch.zeros(52, 2, 2, 1, dtype=torch.uint8), torch.arange(52))
    shares = [
        batch.labels for rank in range(world) for batch in batches(EvaluationPass(images, 17, rank, world))
    ]
    assert torch.cat(shares).sort().values.tolist() == list(range(52))


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # from Python 3.12 on, whoever forks
def test_worker_processes_make_the_same_batches():
    pairs = TensorDataset(TRAIN.tensor()[:40], TRAIN.labels[:40])
    for kind in (EvaluationPass, lambda source, size: Epoch(source, size, seed=0, epoch=0)):
        here, beside = (list(batches(kind(DatasetSource(pairs, workers), 16), 1)) for workers in (0, 1))
        assert len(here) == len(beside) == 2
        assert all(torch.equal(a.images, b.images) for a, b in zip(here, beside, strict=True))
