"""The tasks that rows need, in order."""

from __future__ import annotations

from dataclasses import replace

from helpers.comparing import TERMS
from slimilar.comparison.tasks import Choice, Start, TrainingTask, entries, in_order, needed

# --- what a row says ----------------------------------------------------------------------------------------------


def test_what_needs_what():
    terms = replace(TERMS, criteria=("span",), flops=("0.5",), substitutes=("own",), plain_epochs=True)
    (entry,) = entries(terms)
    assert in_order([entry]) == [
        Start(),
        TrainingTask("plain", 0),
        Choice("span", 0, TrainingTask("plain", 0)),
        entry,
    ]
    assert needed(entry) == (Start(), entry.choice)


# --- several at once ----------------------------------------------------------------------------------------------
