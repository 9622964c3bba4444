"""Errors: options among the parts of a message."""

from __future__ import annotations

import pickle

import pytest

from slimilar import errors
from slimilar.errors import InvalidInput, Option, SlimilarError
from slimilar.utils.checks import check_positive_integer, check_share

KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, SlimilarError)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_message_is_one_text_whatever_its_parts(kind):
    error = kind("allow more (", Option("residual", "joint"), ") or fewer ", Option("min_channels"))
    assert str(error) == 'allow more (residual="joint") or fewer min_channels'
    assert error.option == "residual"
    assert repr(error) == f"{kind.__name__}({str(error)!r})"
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 (between the processes of a comparison)
    assert (type(again), str(again), again.option) == (kind, str(error), "residual")


def test_a_plain_message_names_no_option():
    assert InvalidInput("so it is").option is None
    assert str(InvalidInput("so it is")) == "so it is"


def test_python_may_need_more_than_a_value():
    assert str(Option("exclude", "NAME", "exclude=[...]")) == "exclude=[...]"


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan"), True, "0.5", None])
def test_shares_are_numbers_from_0_to_1(value):
    with pytest.raises(InvalidInput, match=r"^ratio must be a number from 0 to 1, got "):
        check_share(value, "ratio")


@pytest.mark.parametrize("value", [0, -1, 1.0, True, "1", None])
def test_counts_are_whole_numbers_of_at_least_1(value):
    with pytest.raises(InvalidInput, match=r"^round_to must be a whole number of at least 1, got "):
        check_positive_integer(value, "round_to")
