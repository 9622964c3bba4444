"""The table: rows averaged over seeds, ordered by budget and accuracy."""

from __future__ import annotations

import csv
import io
import math

import pytest

from slimilar.comparison.rows import Baseline, Comparison, ComparisonRow
from slimilar.comparison.table import as_csv, lines, margin, markdown


def row(
    criterion: str, budget: str, seed: int, tuned: float | None, share: float = 0.5, **more: object
) -> ComparisonRow:
    key = f"{criterion}-{budget}-{seed}"
    return ComparisonRow(
        key,
        criterion,
        "none",
        True,
        budget,
        seed,
        flops_share=share,
        params_share=0.4,
        pruned=0.2,
        tuned=tuned,
        **more,
    )


ROWS = (
    row("a", "0.3", 0, 0.5, 0.3), row("a", "0.5", 0, 0.6), row("a", "0.5", 1, 0.8), row("b", "0.5", 0, 0.9),
    row("c", "0.5", 0, None, error="no | way"),
)  # fmt: skip


def test_seeds_are_averaged_and_the_most_accurate_is_first():
    found = lines(ROWS)
    assert [(line.budget, line.criterion) for line in found] == [("0.5", "b"), ("0.5", "a"), ("0.3", "a")]
    assert found[1].mean("tuned") == pytest.approx(0.7)
    assert found[1].spread("tuned") == pytest.approx(math.sqrt(0.02))
    assert found[0].spread("tuned") is None
    assert found[0].mean("prepared") is None


def test_the_page_holds_terms_numbers_and_failures():
    terms = {
        "training images": "1000, abc", "plain epochs": False, "epochs": 2, "recipe": {"lr": 0.1, "schedule": "steps"},
        "sparse epochs": 1, "calibration images": 64,
    }  # fmt: skip
    header = {"terms": terms, "made by": {"torch": "2"}, "command": "slimilar compare x"}
    page = markdown(Comparison(Baseline(0.9, 10_000, 1_000, 500), ROWS, header))
    assert "`slimilar compare x`" in page
    assert "accuracy 90.00%" in page
    assert "70.00 ± 14.14" in page
    assert "no \\| way" in page, "a bar inside a cell is escaped"
    assert page.index("budget 0.5") < page.index("budget 0.3") < page.index("Not reached")


def test_csv_has_every_row_and_column():
    found = list(csv.DictReader(io.StringIO(as_csv(ROWS))))
    assert [line["key"] for line in found] == [row.key for row in ROWS]
    assert found[4]["error"] == "no | way"
    assert float(found[1]["tuned"]) == 0.6


def test_the_margin_is_that_of_a_binomial_share():
    assert margin(0.5, 100) == pytest.approx(0.098, abs=1e-4)
