"""Surgery as plain data: which indices stay, which sizes change; and the model that comes of it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from slimilar.surgery.probe import find_structure
from slimilar.surgery.rewrite import Surgery, add_bias, kept_indices, operate, operate_on_meta, surgery, take

X = torch.zeros(1, 3, 8, 8)


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.Conv2d(6, 6, 3, groups=6), nn.Conv2d(6, 2, 1, bias=False)
    )


def without(model: nn.Module, *units: int) -> Surgery:
    """Return the surgery that removes some units of the first group."""
    structure = find_structure(model, X)
    kept = np.ones(structure.grouping.unit_count, np.bool_)
    kept[list(units)] = False
    return surgery(structure.trace, structure.grouping, kept)


def test_the_kept_indices_of_every_coupled_axis() -> None:
    found = without(net(), 1, 4)
    assert set(found.indices) == {
        *((f"0.{name}", 0) for name in ("weight", "bias")),
        *((f"1.{name}", 0) for name in ("weight", "bias", "running_mean", "running_var")),
        *((f"2.{name}", 0) for name in ("weight", "bias")),
        ("3.weight", 1),
    }
    assert all(index.tolist() == [0, 2, 3, 5] for index in found.indices.values())
    assert found.numbers == {("2", "groups", None): 4}


def test_nothing_is_indexed_when_everything_stays() -> None:
    structure = find_structure(net(), X)
    kept = np.ones(structure.grouping.unit_count, np.bool_)
    assert kept_indices(structure.trace, structure.grouping, kept) == {}


def test_the_smaller_model_is_new_and_says_its_own_sizes() -> None:
    model = net()
    before = {name: t.clone() for name, t in model.state_dict().items()}
    small = operate(model, without(model, 1, 4))
    assert (small[0].out_channels, small[1].num_features, small[2].groups, small[3].in_channels) == (
        4,
        4,
        4,
        4,
    )
    assert torch.equal(small[0].weight, model[0].weight[[0, 2, 3, 5]])
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())
    shapes = operate_on_meta(model, without(model, 1, 4))
    assert all(t.is_meta for t in shapes.parameters())
    assert [t.shape for t in shapes.parameters()] == [t.shape for t in small.parameters()]


def test_two_surgeries_in_a_row_are_one() -> None:
    model = net()
    first = without(model, 1, 4)
    second = without(operate(model, first), 0)
    both = operate(model, first.then(second))
    assert torch.equal(both[0].weight, model[0].weight[[2, 3, 5]])
    assert both[2].groups == 3


def test_a_taken_tensor_keeps_type_and_memory_format() -> None:
    x = (
        torch.arange(2 * 4 * 3 * 3, dtype=torch.float16)
        .view(2, 4, 3, 3)
        .to(memory_format=torch.channels_last)
    )
    part = take(x, {1: np.array([3, 0])})
    assert torch.equal(part, x[:, [3, 0]])
    assert part.dtype is torch.float16
    assert part.is_contiguous(memory_format=torch.channels_last)
    whole = take(x, {})
    assert torch.equal(whole, x)
    assert whole.data_ptr() != x.data_ptr()


@pytest.mark.parametrize(
    ("layer", "size"),
    [
        (nn.Conv2d(3, 5, 1, bias=False), 5),
        (nn.Linear(3, 5, bias=False), 5),
        (nn.ConvTranspose2d(4, 6, 1, bias=False, groups=2), 6),
    ],
)
def test_an_added_bias_is_zero_and_as_long_as_the_output(layer: nn.Module, size: int) -> None:
    add_bias(layer)
    assert layer.bias is not None
    assert torch.equal(layer.bias, torch.zeros(size))
