"""The zoo's judge: it finds out from the weights alone which entries are gone, and whether the outputs agree."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

SHAPES = [
    (7, 5),
    (300, 200),
    (8, 6, 3, 3),
    (16, 1, 5, 5),
    (4, 3, 2, 2, 2),
    (6, 4, 3),
    (1, 1),
    (128, 96, 1, 1),
]


@pytest.fixture
def zoo(monkeypatch) -> SimpleNamespace:
    from _zoo import numbers, oracle

    import zoo as run

    return SimpleNamespace(numbers=numbers, oracle=oracle, run=run)


def kept_by_sorting(weight: Tensor, small: Tensor) -> Tensor:
    """Look every kernel's first number up among all of the smaller weight's."""
    first = weight.reshape(*weight.shape[:2], -1)[..., :1]
    lesser = small.reshape(*small.shape[:2], -1)[..., 0]
    return torch.isin(first, lesser.contiguous()).float().reshape(*weight.shape[:2], *[1] * (weight.ndim - 2))


def half(size: int) -> Tensor:
    return torch.randperm(size)[: (size + 1) // 2].sort().values


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("ours", [True, False])
def test_what_is_kept_is_found(zoo, shape, ours):
    weight = zoo.numbers.distinct(torch.Size(shape)) if ours else torch.randperm(100_000)[:60_000].float()
    weight = weight.flatten()[: torch.Size(shape).numel()].view(shape)
    rows, columns = half(shape[0]), half(shape[1])
    small = weight[rows][:, columns]
    expected = torch.zeros(shape[:2])
    expected[rows.unsqueeze(1), columns] = 1
    found = zoo.oracle._kept(weight, small)
    assert torch.equal(found, expected.view(*shape[:2], *[1] * (len(shape) - 2)))
    assert torch.equal(found, kept_by_sorting(weight, small))


@pytest.mark.parametrize("other", ["no such number", "a number of another place in a kernel"])
def test_numbers_that_are_not_in_the_weight_are_not_found(zoo, other):
    weight = zoo.numbers.distinct(torch.Size((6, 5, 3, 3)))
    small = weight[:4, :3].clone()
    small[1, 2, 0, 0] = 3.25 if other == "no such number" else weight[5, 4, 1, 1]
    found = zoo.oracle._kept(weight, small)
    assert found[:, :, 0, 0].sum() == 11
    assert found[1, 2] == found[5, 4] == 0
    assert torch.equal(found, kept_by_sorting(weight, small))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_other_precisions_are_searched(zoo, dtype):
    weight = zoo.numbers.distinct(torch.Size((6, 5))).to(dtype)
    small = weight[1:, ::2]
    assert torch.equal(zoo.oracle._kept(weight, small).float(), kept_by_sorting(weight, small))


@pytest.mark.parametrize("shape", SHAPES)
def test_numbers_are_the_bits_of_a_permutation(zoo, shape):
    count, width = torch.Size(shape).numel(), torch.Size(shape[1:]).numel()
    bits = [(i * 88_172_645 + 12_345) % 2**27 for i in range(count)]
    scale = 2 ** round(torch.tensor(width).double().log2().item() / 2)
    expected = [(1 + b % 2**23 / 2**23) / 2 ** (b >> 24) * (-1 if b >> 23 & 1 else 1) / scale for b in bits]
    found = zoo.numbers.distinct(torch.Size(shape))
    assert found.flatten().tolist() == expected
    assert torch.equal(zoo.numbers.places(found.flatten(), found.shape).long(), torch.arange(count))


def test_numbers_at_the_end_of_the_range_tell_their_places_too(zoo):
    shape = torch.Size(
        (4_096, 25_088)
    )  # the first linear layer of a VGG, by a sample: the whole takes seconds
    places = torch.randint(shape.numel(), (1000,))
    bits = (places * 88_172_645 + 12_345) % 2**27
    size = (1 + (bits % 2**23).double() / 2**23) * 2.0 ** (-(bits >> 24)).double() / 2**7
    numbers = torch.where(bits & 2**23 > 0, -size, size).float()
    assert torch.equal(zoo.numbers.places(numbers, shape).long(), places)


def test_a_number_of_another_weight_has_no_place(zoo):
    tried = torch.tensor([0.0, 2.0, 1e-30, float("inf"), -8.0])
    assert zoo.numbers.places(tried, torch.Size((9,))).tolist() == [-1] * 5


class Net(nn.Sequential):
    """Two convolutions with a batch norm between them, and a classifier."""

    def __init__(self, width: int) -> None:
        super().__init__(
            nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, 6, 3),
            nn.Flatten(), nn.Linear(6 * 16, 4),
        )  # fmt: skip


def without_last(model: nn.Sequential, read: slice) -> nn.Sequential:
    """Return the network without the last channel of its first layer; the second one reads what it is told to."""
    small = copy.deepcopy(model)
    for module, name in (
        (small[0], "weight"),
        (small[0], "bias"),
        *((small[1], n) for n in ("weight", "bias")),
    ):
        setattr(module, name, nn.Parameter(getattr(module, name)[:-1]))
    small[1].running_mean, small[1].running_var = small[1].running_mean[:-1], small[1].running_var[:-1]
    small[3].weight = nn.Parameter(small[3].weight[:, read])
    return small


def test_the_judge_tells_right_from_wrong(zoo):
    model, x = zoo.oracle.randomise(Net(5)), torch.randn(2, 3, 6, 6)
    right, wrong = without_last(model, slice(0, 4)), without_last(model, slice(1, 5))
    assert zoo.oracle.difference(zoo.oracle.masked(model, right), right, x) < 1e-6
    assert zoo.oracle.difference(zoo.oracle.masked(model, wrong), wrong, x) > 1e-2
    assert zoo.oracle.difference(model, right, x) > 1e-2  # the channel did something


@pytest.mark.parametrize(
    ("row", "again", "done"),
    [
        (None, set(), False),
        ({"status": "pass", "limit": 20.0}, set(), True),
        ({"status": "pass", "limit": 20.0}, {"pass"}, False),
        ({"status": "time-out", "limit": 20.0}, set(), False),
        ({"status": "time-out", "limit": 60.0}, set(), True),
    ],
)
def test_what_ran_out_of_less_time_is_tried_once_more(zoo, row, again, done):
    assert zoo.run.is_done(row, again, 60) is done


class Sixteen(nn.Module):
    """A network for videos of sixteen frames."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv3d(3, 4, 1), nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.conv(x).mean((3, 4)))


@pytest.mark.parametrize(("kind", "shape"), [("video", [1, 3, 16, 8, 8]), ("", [2, 3, 8, 8])])
def test_as_many_frames_are_given_as_a_network_takes(zoo, monkeypatch, kind, shape):
    from _zoo import catalogue, worker

    monkeypatch.setattr(worker, "build", lambda *_: Sixteen() if kind else nn.Conv2d(3, 4, 1))
    entry = catalogue.Architecture("own", "own", kind, 0, 0, "", (8,))
    assert list(worker.prepared(entry)[1].shape) == shape
