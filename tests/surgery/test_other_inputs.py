"""Verification at other batch sizes, other image sizes, and in training mode; each mismatch is named."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from slimilar.errors import VerificationError
from slimilar.graph.assumptions import Assumptions
from slimilar.graph.grouping import find_groups
from slimilar.graph.structure import Structure
from slimilar.graph.tracing import trace
from slimilar.surgery.other_inputs import other_inputs, random_like, with_small_images
from slimilar.surgery.rewrite import operate, surgery
from slimilar.surgery.training_step import check_training_step
from slimilar.surgery.verify import verify

X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def shapes(example: object) -> dict[str, list[tuple[int, ...]]]:
    return {
        name: [tuple(t.shape) for t in (inputs if isinstance(inputs, tuple) else (inputs,))]
        for name, inputs in other_inputs(example)
    }


def test_batch_and_image_sizes() -> None:
    assert shapes(X) == {
        "a batch of 1": [(1, 3, 8, 8)],
        "a batch of 3": [(3, 3, 8, 8)],
        "images of 16 by 16": [(2, 3, 16, 16)],
    }
    assert shapes(torch.zeros(1, 5)) == {"a batch of 3": [(3, 5)]}
    assert shapes((torch.zeros(3, 4), torch.tensor(2.0))) == {"a batch of 1": [(1, 4), ()]}


def test_images_of_another_size_are_not_resized_again() -> None:
    assert [name for name, _ in other_inputs(X, other_images=False)] == ["a batch of 1", "a batch of 3"]


def test_large_images_are_made_small() -> None:
    found = with_small_images(torch.zeros(1, 3, 224, 448))
    assert [tuple(small.shape) for small in found] == [(1, 3, 32, 64), (1, 3, 96, 192)]
    assert list(with_small_images(X)) == []


def test_random_inputs_keep_whole_numbers() -> None:
    noise, index = random_like((X, torch.tensor([3, 1])), torch.float64, X.device)
    assert noise.dtype is torch.float64
    assert index.tolist() == [3, 1]


class Net(nn.Module):
    """Two convolutions, and what happens between them."""

    def __init__(self, code: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.a, self.b, self.code = nn.Conv2d(3, 6, 1), nn.Conv2d(6, 2, 1), code

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.code(self, self.a(x)))


def check(code: Callable[[nn.Module, Tensor], Tensor], x: Tensor = X) -> float:
    """Remove two channels, without any probing, and verify."""
    torch.manual_seed(0)
    net = Net(code).eval()
    found = trace(net, x)
    structure = Structure(found, find_groups(found, "inner"), Assumptions())
    kept = np.array([True, False, True, True, False, True])
    small = operate(net, surgery(structure.trace, structure.grouping, kept))
    return verify(net, small, x, structure.trace, structure.grouping, kept)


def _shifted(x: Tensor, shifts: bool) -> Tensor:
    """Take other channels than at the original width, on some inputs only; the operators are the same on all."""
    return x.flip(1) if shifts and x.shape[1] < 6 else x.flip(2)


@pytest.mark.parametrize(
    ("code", "named"),
    [
        (lambda self, x: _shifted(x, len(x) == 1), "a batch of 1"),
        (lambda self, x: _shifted(x, len(x) == 3), "a batch of 3"),
        (lambda self, x: _shifted(x, x.shape[3] == 16), "images of 16 by 16"),
    ],
)
def test_what_differs_on_another_input_is_named(
    code: Callable[[nn.Module, Tensor], Tensor], named: str
) -> None:
    with pytest.raises(VerificationError, match=f"differ by .* on {named}"):
        check(code)


def test_images_of_a_batch_that_change_places_are_seen() -> None:
    with pytest.raises(VerificationError, match=r"differ by .* on a batch of 3"):
        check(lambda self, x: x.flip(0, 2) if x.shape[1] < 6 else x.flip(2), X[:1])


def test_what_differs_on_smaller_images_is_named() -> None:
    torch.manual_seed(0)
    net, x = Net(lambda self, x: _shifted(x, x.shape[3] == 32)).eval(), torch.zeros(1, 3, 64, 64)
    structure = Structure(found := trace(net, x), find_groups(found, "inner"), Assumptions())
    kept = np.array([True, False, True, True, False, True])
    small = operate(net, surgery(structure.trace, structure.grouping, kept))
    with pytest.raises(VerificationError, match=r"differ by .* on images of 32 by 32"):
        verify(net, small, x, structure.trace, structure.grouping, kept)


def test_what_raises_on_another_input_is_named() -> None:
    with pytest.raises(VerificationError, match="on a batch of 3 the smaller model raised"):
        check(lambda self, x: x.view(3, 6, 8, 8).relu() if len(x) == 3 else x.view(x.shape).relu())


def test_inputs_that_the_original_refuses_are_left_out() -> None:
    assert check(lambda self, x: x.view(2, -1, 8, 8)) < 1e-5


def test_code_that_mixes_images_and_channels_on_another_batch_is_left_out() -> None:
    net = Fixed().eval()
    structure = Structure(found := trace(net, X[:1]), find_groups(found, "inner"), Assumptions())
    kept = np.array([True, False, True, True, False, True])
    small = operate(net, surgery(structure.trace, structure.grouping, kept))
    assert verify(net, small, X[:1], structure.trace, structure.grouping, kept) < 1e-5


class Fixed(nn.Module):
    """Code with a batch of one written in: more images become more pixels of other channels."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 6, 1), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x)
        return self.b(y.view(1, y.shape[1], -1).mean(2))


def test_a_training_step_that_fails_is_named() -> None:
    with pytest.raises(
        VerificationError, match=r"a step of training .* in training mode it raised RuntimeError"
    ):
        check(lambda self, x: x.view(2, 6, 8, 8) if self.training else x.view(2, -1, 8, 8))


def test_a_training_step_changes_nothing() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Dropout(0.5)).eval()
    before, state = {n: t.clone() for n, t in net.state_dict().items()}, torch.get_rng_state()
    check_training_step(net, net, X)
    assert all(torch.equal(t, before[n]) for n, t in net.state_dict().items())
    assert all(p.grad is None for p in net.parameters())
    assert not net.training
    assert torch.equal(torch.get_rng_state(), state)


def test_a_model_that_cannot_train_on_the_example_is_not_blamed() -> None:
    class Never(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if self.training:
                raise ValueError("targets")
            return x

    check_training_step(Never(), Never(), X)
