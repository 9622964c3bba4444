"""Targets and budgets: what is taken, what is refused, and in which words."""

from __future__ import annotations

import math

import pytest

from slimilar.errors import InvalidInput
from slimilar.planning.budgets import check_budget, parse_budget
from slimilar.planning.target import KINDS, PruningTarget

AMOUNTS = {
    "threshold": 0.2,
    "flops": "4.4G",
    "macs": "50%",
    "params": 10**6,
    "ratio": 0.5,
    "quantile": 0,
    "latency": "12ms",
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_given_by_its_own_keyword(kind):
    others = dict.fromkeys(KINDS)
    target = PruningTarget.of(**{**others, kind: AMOUNTS[kind]}, round_to=4, thresholds={"a": 0.1})
    assert target == PruningTarget(kind, AMOUNTS[kind], 4, {"a": 0.1})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "exactly one of flops, ratio must be given, got none"),
        ({"flops": 0.5, "ratio": 0.5}, "exactly one of flops, ratio must be given, got flops and ratio"),
    ],
)
def test_exactly_one_amount_is_given(given, message):
    with pytest.raises(InvalidInput) as raised:
        PruningTarget.of(**{"flops": None, "ratio": None, **given})
    assert str(raised.value) == message
    assert raised.value.option == "flops"


@pytest.mark.parametrize(
    ("kind", "amount", "option"),
    [
        ("threshold", 1.1, "threshold"), ("threshold", -0.1, "threshold"), ("ratio", True, "ratio"),
        ("quantile", "0.5", "quantile"), ("ratio", math.nan, "ratio"), ("flops", 0, "flops"), ("macs", "many", "macs"),
        ("params", math.inf, "params"), ("flops", False, "flops"), ("latency", 2, "latency"),
    ],
)  # fmt: skip
def test_wrong_amounts_are_refused_with_their_option(kind, amount, option):
    with pytest.raises(InvalidInput, match=f"^{option} must be .*, got ") as raised:
        PruningTarget(kind, amount)
    assert raised.value.option == option


@pytest.mark.parametrize("round_to", [0, -8, 1.5, True, "8"])
def test_rounding_is_a_positive_integer(round_to):
    with pytest.raises(InvalidInput, match="round_to must be a whole number of at least 1"):
        PruningTarget("ratio", 0.5, round_to)


def test_a_kind_that_does_not_exist():
    with pytest.raises(InvalidInput, match="must be one of threshold, flops"):
        PruningTarget("size", 0.5)  # type: ignore[arg-type]


def test_overrides_are_thresholds():
    with pytest.raises(InvalidInput, match="threshold must be a number from 0 to 1, got 2"):
        PruningTarget("ratio", 0.5, thresholds={"a": 2})


@pytest.mark.parametrize(
    ("budget", "number"),
    [
        (1, 1000), (1.0, 1000), (0.25, 250), ("25%", 250), ("0.25", 250), ("250%", 2500), (2, 2), ("2", 2),
        ("10k", 1e4), ("4.4G", 4.4e9), ("3B", 3e9), (" 1.5 m ", 1.5e6), ("1e3", 1000), (10**12, 1e12), ("2t", 2e12),
    ],
)  # fmt: skip
def test_a_budget_is_a_share_up_to_one_and_a_number_above(budget, number):
    assert parse_budget("flops", budget, 1000) == pytest.approx(number)


@pytest.mark.parametrize("budget", ["", "G", "1 2", "-1", "1x", None, [1], math.nan, "0"])
def test_what_is_no_budget(budget):
    with pytest.raises(InvalidInput, match=r"macs must be a share such as 0\.5"):
        check_budget("macs", budget)
