"""A comparison's folder: a row as soon as it is known, whatever happens in between."""

from __future__ import annotations

from dataclasses import replace

import pytest

from helpers.comparing import RECIPE, TERMS, plain, subject
from slimilar.comparison import Event, compare, load
from slimilar.comparison.table import lines, markdown
from slimilar.errors import InvalidInput, StoreError
from slimilar.train import train


def test_a_second_call_does_nothing_and_says_so(whole):
    events: list[Event] = []
    before = (whole[0] / "rows.jsonl").read_bytes()
    compare(subject(), TERMS, whole[0], threads=1, progress=events.append)
    assert (whole[0] / "rows.jsonl").read_bytes() == before
    assert [event.title for event in events] == ["10 of 10 rows are there already"]


def test_criteria_budgets_and_seeds_may_be_added(tmp_path):
    terms = replace(TERMS, criteria=("magnitude-l1",), substitutes=("own",), epochs=0)
    compare(subject(), terms, tmp_path, threads=1)
    more = replace(terms, criteria=("random",), seeds=(0, 1))
    found = compare(subject(), more, tmp_path, threads=1)
    assert len(found.rows) == 2 + 4
    zero, one = ([r.pruned for r in found.rows if r.criterion == "random" and r.seed == s] for s in (0, 1))
    assert zero != one
    assert len(lines(found.rows)) == 4
    assert " ± " in markdown(found)


def test_fitted_networks_may_have_a_recipe_of_their_own(tmp_path):
    """One that changes nothing, so that it shows who was given it."""
    still = replace(RECIPE, lr=1e-12, freeze_statistics=True)
    terms = replace(TERMS, criteria=("magnitude-l1",), flops=("0.5",), fitted_recipe=still)
    rows = {r.substitute: r for r in compare(subject(), terms, tmp_path, threads=1).rows}
    assert rows["least-squares"].tuned == rows["least-squares"].pruned
    assert rows["none"].tuned != rows["none"].pruned
    with pytest.raises(InvalidInput, match=r"recipe of fitted networks must be .*, got None"):
        compare(subject(), replace(terms, fitted_recipe=None), tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epochs": 2}, r"epochs must be 1 as in the comparison in .*, got 2; use the same value"),
        ({"images": 32}, "calibration images must be 64"),
        ({"recipe": replace(RECIPE, lr=0.5)}, "recipe must be"),
        ({"sparse_epochs": 3}, "sparse epochs must be 1"),
        ({"fitted_recipe": RECIPE}, "recipe of fitted networks must be None"),
    ],
)
def test_other_terms_are_refused(whole, change, message):
    with pytest.raises(InvalidInput, match=message):
        compare(subject(), replace(TERMS, **change), whole[0])


def test_other_weights_or_images_are_refused(whole):
    other = train(subject().model, subject().train, replace(RECIPE, lr=1e-6)).model
    with pytest.raises(InvalidInput, match="model must be"):
        compare(replace(subject(), model=other), TERMS, whole[0])
    with pytest.raises(InvalidInput, match=r"training images must be '300, .*got '299"):
        compare(replace(subject(), train=subject().train.first(299)), TERMS, whole[0])


def test_a_torn_last_line_is_made_again(whole, tmp_path):
    terms = replace(TERMS, criteria=("magnitude-l1",), substitutes=("own",), epochs=0)
    first = compare(subject(), terms, tmp_path, threads=1)
    file = tmp_path / "rows.jsonl"
    content = file.read_bytes()
    file.write_bytes(content[:-20])
    assert len(load(tmp_path).rows) == 1
    assert plain(compare(subject(), terms, tmp_path, threads=1)) == plain(first)
    assert len(file.read_bytes().splitlines()) == 2


def test_a_broken_row_in_the_middle_is_not_passed_over(tmp_path):
    compare(subject(), replace(TERMS, criteria=("random",), substitutes=("own",), epochs=0), tmp_path)
    with open(tmp_path / "rows.jsonl", "a") as file:
        file.write('{"key": 3\n')
    with pytest.raises(StoreError, match="must hold one row per line"):
        load(tmp_path)


def test_only_one_at_a_time(whole):
    fcntl = pytest.importorskip("fcntl")
    with open(whole[0] / ".lock") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(InvalidInput, match="in use by another comparison"):
            compare(subject(), TERMS, whole[0])


def test_a_budget_that_cannot_be_reached_is_a_row_that_says_why(tmp_path):
    terms = replace(TERMS, criteria=("random",), flops=("0.5", "0.0001"), substitutes=("own",), epochs=0)
    found = compare(subject(), terms, tmp_path, threads=1)
    reached, failed = found.rows
    assert reached.error is None
    assert "smallest" in failed.error
    assert failed.pruned is None
    assert "## Not reached" in markdown(found)
    compare(subject(), terms, tmp_path, threads=1)
    assert len((tmp_path / "rows.jsonl").read_bytes().splitlines()) == 2
