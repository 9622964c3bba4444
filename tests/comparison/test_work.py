"""Criteria side by side: what a row says, the same for all, however many processes make it."""

from __future__ import annotations

import json
from dataclasses import replace

import torch

import slimilar
from helpers.comparing import RECIPE, TERMS, subject
from slimilar.comparison import compare
from slimilar.comparison.choices import decode, encode
from slimilar.comparison.terms import calibration
from slimilar.criteria import available, facts
from slimilar.pipeline.analysis import plan_from
from slimilar.train import evaluate, train

# --- what a row says ----------------------------------------------------------------------------------------------


def test_a_row_for_everything_that_was_asked(whole):
    rows = whole[1].rows
    own = {name: facts(name).substitute for name in TERMS.criteria}
    wanted = {
        (c, s, b) for c in TERMS.criteria for b in TERMS.flops for s in ("least-squares", own[c])
    }  # where they are the same, one row serves for both
    assert {(r.criterion, r.substitute, r.budget) for r in rows} == wanted
    assert len(rows) == len(wanted)
    assert all(r.own == (r.substitute == own[r.criterion]) for r in rows)


def test_a_row_is_what_one_would_get_by_hand(whole):
    """Pruned, measured, trained and measured by the plain functions."""
    row = next(r for r in whole[1].rows if r.key == "magnitude-l1-least-squares-0.5-0")
    s, images = subject(), calibration(subject(), TERMS, 0)[0]
    pruned = slimilar.prune(
        s.model, s.example, flops="0.5", round_to=1, criterion="magnitude-l1", substitute="linear",
        calibration=images,
    )  # fmt: skip
    tuned = train(pruned.model, s.train, RECIPE).model
    start = slimilar.count(s.model, s.example)
    assert row.before == evaluate(s.model, s.test).accuracy
    assert row.pruned == evaluate(pruned.model, s.test).accuracy
    assert row.tuned == evaluate(tuned, s.test).accuracy
    assert (row.flops, row.params) == (pruned.cut.flops, pruned.cut.params)
    assert row.flops_share == row.flops / start.flops <= 0.5


def test_calibration_images_are_training_images_by_seed():
    first, again, other = (calibration(subject(), TERMS, seed)[0] for seed in (0, 0, 1))
    everything = subject().train.batch(torch.arange(300))[0].flatten(1)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert (first.flatten(1)[:, None] == everything).all(2).any(1).all()
    assert len(first) == TERMS.images


def test_one_choice_serves_budgets_and_substitutes(whole):
    names = {path.stem for path in (whole[0] / "choices").iterdir()}
    assert names == {f"{criterion}-0" for criterion in TERMS.criteria}


def test_a_choice_survives_its_file():
    s = subject()
    plan = slimilar.analyze(s.model, s.example)
    remembered = decode(json.loads(json.dumps(encode(plan))))
    again = plan_from(s.model, s.example, remembered)
    assert (again.criterion, again.exchangeable) == (plan.criterion, plan.exchangeable)
    for before, after in zip(plan.orders, again.orders, strict=True):
        assert before.removed.tolist() == after.removed.tolist()
        assert before.heights.tolist() == after.heights.tolist()
        assert before.representative.tolist() == after.representative.tolist()


# --- training before pruning --------------------------------------------------------------------------------------


def trainers() -> list[str]:
    return [name for name in available() if facts(name).needs == "training"]


def test_criteria_that_train_first(tmp_path):
    """Their extra epochs are counted; a phase is shared by budgets unless it must know the budget."""
    terms = replace(TERMS, criteria=tuple(trainers()), substitutes=("own",), epochs=0, sparse_epochs=2)
    found = compare(subject(), terms, tmp_path, threads=1)
    assert all(row.error is None for row in found.rows), [row.error for row in found.rows]
    assert {row.extra_epochs for row in found.rows} == {2}
    assert all(row.prepared is not None and row.tuned is None for row in found.rows)
    phases = {path.name for path in (tmp_path / "phases").iterdir()}
    wanted = set()
    for name in trainers():
        wanted |= {f"{name}-{b}-0" for b in terms.flops} if facts(name).per_budget else {f"{name}-0"}
    assert phases == wanted


def test_the_others_may_have_as_many_plain_epochs(tmp_path):
    terms = replace(
        TERMS, criteria=("magnitude-l1",), flops=("0.5",), substitutes=("own",), plain_epochs=True
    )
    (row,) = compare(subject(), replace(terms, epochs=0), tmp_path, threads=1).rows
    by_hand = train(subject().model, subject().train, RECIPE).model
    assert (row.extra_epochs, row.prepared) == (1, evaluate(by_hand, subject().test).accuracy)
