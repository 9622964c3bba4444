"""Tensors in one memory: what is written into one of them shows in the others."""

from __future__ import annotations

import torch
from torch import Tensor

from slimilar.graph.aliasing import SharedMemory, equal, overwrite, same_channels
from slimilar.graph.labels import NONE, Labels
from slimilar.graph.records import Value
from slimilar.graph.values import Values

CHANNELS: Labels = (torch.arange(4).view(1, 4, 1, 1),)
OTHERS: Labels = (torch.arange(4, 8).view(1, 4, 1, 1),)


def entered(tensors: list[tuple[Tensor, Labels]]) -> Values:
    """Return the values of some tensors with their labels."""
    values = Values({}, lambda name, shape: NONE)
    for tensor, labels in tensors:
        values.store(tensor, Value(tuple(tensor.shape), labels, None, True, False))
    return values


def test_views_share_memory_and_copies_do_not() -> None:
    x = torch.zeros(2, 4, 3, 3)
    view, copy = x[:, 1:], x.clone()
    found = SharedMemory()
    for tensor in (x, view, copy):
        found.add(tensor)
    assert [t is view for t in found.others(x)] == [True]
    assert found.others(copy) == []


def test_labels_are_equal_by_content() -> None:
    assert equal(CHANNELS, (CHANNELS[0].clone(),))
    assert not equal(CHANNELS, OTHERS)
    assert not equal(CHANNELS, NONE)


def test_a_part_of_the_channels_is_not_the_same_channels() -> None:
    x = torch.zeros(2, 4, 3, 3)
    assert same_channels(x, x[1:], CHANNELS)
    assert not same_channels(x, x[:, 1:], CHANNELS)


def test_writing_into_a_fresh_tensor_labels_all_its_views() -> None:
    whole = torch.zeros(2, 4, 3, 3)
    first = whole[:1]
    values = entered([(whole, NONE), (first, NONE)])
    assert overwrite(values, first, NONE, CHANNELS) == NONE
    assert equal(values.labels(whole), CHANNELS)


def test_writing_other_channels_into_a_part_freezes_both() -> None:
    whole = torch.zeros(2, 4, 3, 3)
    first = whole[:1]
    values = entered([(whole, CHANNELS), (first, CHANNELS)])
    assert equal(overwrite(values, first, CHANNELS, OTHERS), CHANNELS + OTHERS)


def test_writing_the_same_channels_freezes_nothing() -> None:
    whole = torch.zeros(2, 4, 3, 3)
    first = whole[:1]
    values = entered([(whole, CHANNELS), (first, CHANNELS)])
    assert overwrite(values, first, CHANNELS, (CHANNELS[0].clone(),)) == NONE
