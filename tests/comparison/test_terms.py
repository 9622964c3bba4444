"""Terms that mean nothing are refused before any work."""

from __future__ import annotations

from dataclasses import replace

import pytest

from helpers.comparing import TERMS, subject
from slimilar.comparison import compare
from slimilar.comparison.terms import fixed
from slimilar.errors import InvalidInput

# --- what is asked ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"criteria": ("similarty",)}, "did you mean similarity"),
        ({"criteria": ()}, "criteria must list at least one name and no duplicates"),
        ({"flops": ("half",)}, "flops must be a share"),
        (
            {"flops": ("7",)},
            r"flops must be a share from 0 to 1 .* or a number of FLOPs such as \"40M\", got '7'",
        ),
        ({"flops": ("150%",)}, "flops must be a share from 0 to 1"),
        ({"flops": ("0",)}, "flops must be a share"),
        ({"flops": ("-0.5",)}, "flops must be a share"),
        ({"flops": ("0.5", "0.5")}, "flops must list at least one name and no duplicates"),
        ({"substitutes": ("best",)}, "reconstruction must be one of"),
        ({"epochs": -1}, "epochs must not be negative"),
        ({"images": 0}, "criterion 'span' needs images, got images 0"),
        ({"residual": "outer"}, "residual must be one of"),
        ({"precision": "float8"}, "precision must be one of"),
    ],
)
def test_mistakes_are_found_before_any_work(change, message):
    with pytest.raises(InvalidInput, match=message):
        replace(TERMS, **change)


@pytest.mark.parametrize("budget", ["1", "100%", "0.3", "12.5%", "4k", "1e3"])
def test_shares_and_sizes_are_budgets(budget):
    assert replace(TERMS, flops=(budget,)).flops == (budget,)


def test_more_flops_than_there_are(tmp_path):
    with pytest.raises(InvalidInput, match=r"at most the \d+\.\d+ k of the network, got '7G'"):
        compare(subject(), replace(TERMS, flops=("0.5", "7G")), tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_more_calibration_images_than_there_are(tmp_path):
    with pytest.raises(InvalidInput, match="at most the 300 training images, got 301"):
        compare(subject(), replace(TERMS, images=301), tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_both_names_of_least_squares_are_given_images():
    fitted = [name for name in ("none", "gaussian", "least-squares", "linear", "auto") if TERMS.fits(name)]
    assert fitted == ["least-squares", "linear", "auto"]
    assert not replace(TERMS, criteria=("similarity",), images=0).fits("linear")


# --- the command line ---------------------------------------------------------------------------------------------


def test_the_precision_of_trainings_may_not_change_between_calls():
    plain, mixed = (fixed(subject(), replace(TERMS, precision=p)) for p in ("auto", "bfloat16"))
    assert {name: value for name, value in mixed.items() if plain.get(name) != value} == {
        "precision": "bfloat16"
    }
