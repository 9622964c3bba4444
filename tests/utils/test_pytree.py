"""Tensors in whatever a model takes or returns."""

from __future__ import annotations

from collections import OrderedDict, deque, namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from slimilar.errors import InvalidInput
from slimilar.utils.pytree import PLACE, arguments, foreign_in, map_tensors, operands, separate, tensors_in

A, B = torch.zeros(1), torch.ones(2)
Pair = namedtuple("Pair", "one other")


class Slots:
    __slots__ = ("held", "unset")

    def __init__(self, held: Any) -> None:
        self.held = held


class Below(Slots):
    """Slots of its own class's parent, and attributes beside them."""

    def __init__(self, held: Any, beside: Any) -> None:
        super().__init__(held)
        self.beside = beside


@dataclass
class Plain:
    one: Tensor
    name: str = "x"


@pytest.mark.parametrize(
    "tree",
    [
        [A, B], (A, [B]), {"a": A, "b": {"c": B}}, OrderedDict(a=A, b=B), deque([A, B]), Pair(A, B),
        [Plain(A), Plain(B)], [Slots(A), Slots([B])], Below(B, A),
    ],
)  # fmt: skip
def test_every_tensor_is_found_and_nothing_is_foreign(tree: Any) -> None:
    assert {id(t) for t in tensors_in(tree)} == {id(A), id(B)}
    assert list(foreign_in(tree)) == []


def test_numbers_names_and_modules_are_no_tensors_and_not_foreign() -> None:
    tree = [1, 2.5, None, "x", True, torch.float32, torch.device("cpu"), nn.ReLU(), len, torch.Size([1])]
    assert list(tensors_in(tree)) == []
    assert list(foreign_in(tree)) == []


def test_arrays_and_generators_are_foreign() -> None:
    array, generator = np.zeros(2), (x for x in [A])
    assert list(foreign_in({"a": [array], "b": Plain(A), "c": generator})) == [array, generator]


def test_a_generator_is_not_consumed() -> None:
    generator = (x for x in [1])
    assert list(tensors_in(generator)) == []
    list(foreign_in(generator))
    assert next(generator) == 1


def test_arguments_are_positional_named_or_one() -> None:
    assert arguments(A) == ((A,), {})
    assert arguments((A, B)) == ((A, B), {})
    assert arguments({"x": A}) == ((), {"x": A})
    with pytest.raises(InvalidInput, match="got str"):
        arguments("x")


def test_mapping_keeps_the_containers() -> None:
    found = map_tensors(lambda t: t + 1, {"a": [A, 3], "b": Pair(B, "x")})
    assert torch.equal(found["a"][0], A + 1)
    assert found["a"][1] == 3
    assert isinstance(found["b"], Pair)


def test_the_arguments_of_an_operator_are_separated() -> None:
    tensors, rest = separate((A, [B, None], [1, 2], (A,), 3.0))
    assert [id(t) for t in tensors] == [id(A), id(B), id(A)]
    assert rest == [PLACE, [PLACE, None], [1, 2], (PLACE,), 3.0]
    assert [id(t) for t in operands((A, [B, None], 3))] == [id(A), id(B)]
