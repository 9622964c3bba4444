"""Training recorded epoch by epoch: what a row holds, and what can be read while it is under way."""

from __future__ import annotations

from dataclasses import replace

import pytest

import slimilar
from helpers.comparing import RECIPE, TERMS, subject
from slimilar.comparison import TrainingStatus, compare, load, under_way
from slimilar.comparison import work as comparison_work
from slimilar.criteria import training_hooks
from slimilar.errors import InvalidInput
from slimilar.train import Recipe, evaluate, train

PRUNE = replace(TERMS, criteria=("magnitude-l1",), flops=("0.5",), substitutes=("own",))
TWICE = replace(RECIPE, epochs=2)


def test_a_row_holds_the_accuracy_after_every_epoch(tmp_path):
    terms = replace(PRUNE, recipe=TWICE, epochs=2, score_epochs=True)
    compare(subject(), terms, tmp_path, threads=1)
    (row,) = load(tmp_path).rows
    s = subject()
    small = slimilar.prune(
        s.model, s.example, flops="0.5", round_to=1, criterion="magnitude-l1", reconstruction="none"
    ).model
    by_hand = train(small, s.train, TWICE, test=s.test)
    assert row.by_epoch == tuple(record.test_accuracy for record in by_hand.history)
    assert row.tuned == row.by_epoch[-1]


def test_without_being_asked_no_epoch_is_scored(whole):
    assert all(row.by_epoch == () for row in whole[1].rows)
    assert under_way(whole[0]) == []


def test_an_interrupted_training_says_where_it_stands(tmp_path, monkeypatch):
    """Interrupted after its last epoch and before its row, then ended by the same call."""
    terms = replace(PRUNE, recipe=TWICE, epochs=2, score_epochs=True)

    def interrupted(self, row, model):
        self._trained(model, self.folder / "runs" / row.key, terms.recipe_for(row.substitute), row.seed)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(comparison_work.Bench, "_tuned", interrupted)
        with pytest.raises(KeyboardInterrupt):
            compare(subject(), terms, tmp_path, threads=1)
    (status,) = under_way(tmp_path)
    assert (status.key, status.before_pruning, status.epoch, status.epochs) == (
        "magnitude-l1-none-0.5-0",
        False,
        2,
        2,
    )
    assert "fine-tuning, in epoch 2 of 2" in str(status)
    (row,) = compare(subject(), terms, tmp_path, threads=1).rows
    assert (row.by_epoch, row.resumed) == (status.by_epoch, True)
    assert under_way(tmp_path) == []


def test_a_status_in_words():
    status = TrainingStatus("slimming-0", True, 3, 10, (0.5, 0.625))
    assert str(status) == "slimming-0: training before pruning, in epoch 3 of 10, 62.50 % after epoch 2"


def test_training_phases_may_have_a_recipe_of_their_own(tmp_path):
    steep = Recipe(epochs=1, batch_size=16, lr=0.05)
    terms = replace(PRUNE, criteria=("slimming",), epochs=0, sparse_recipe=steep)
    (row,) = compare(subject(), terms, tmp_path, threads=1).rows
    s = subject()
    by_hand = train(s.model, s.train, steep, hooks=training_hooks("slimming", s.model, s.example)).model
    assert row.prepared == evaluate(by_hand, s.test).accuracy
    with pytest.raises(InvalidInput, match="recipe of training phases must be"):
        compare(subject(), replace(terms, sparse_recipe=None), tmp_path, threads=1)
