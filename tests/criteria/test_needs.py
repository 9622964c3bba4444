"""What criteria need: one check, with a message for Python and for the command line."""

from __future__ import annotations

import pytest

from slimilar.cli.error_handling import as_typed
from slimilar.criteria import Facts
from slimilar.criteria.needs import Given, check_needs, missing
from slimilar.errors import InvalidInput

ALL = Given(images=True, labels=True, trained=True)


@pytest.mark.parametrize(
    ("needs", "given", "lacking"),
    [
        ("nothing", Given(), None),
        ("images", Given(), "images"),
        ("images", Given(images=True), None),
        ("labels", Given(), "images"),
        ("labels", Given(images=True), "labels"),
        ("labels", Given(images=True, labels=True), None),
        ("training", Given(images=True, labels=True), "training"),
        ("training", Given(trained=True), None),
    ],
)
def test_what_is_missing(needs, given, lacking):
    facts = Facts("", needs=needs)
    assert missing(facts, given) == lacking
    if lacking is None:
        check_needs("mine", facts, given)
    else:
        with pytest.raises(InvalidInput, match='criterion "mine"'):
            check_needs("mine", facts, given)
    check_needs("mine", facts, ALL)


def raised(facts: Facts, given: Given) -> InvalidInput:
    with pytest.raises(InvalidInput) as error:
        check_needs("soft", facts, given)
    return error.value


def test_messages_name_the_option_of_each_surface():
    images = raised(Facts("", needs="images"), Given())
    assert images.option == "calibration"
    assert "pass calibration= with unlabelled images" in str(images)
    assert "pass --calibrate with unlabelled images" in images.message(as_typed)
    labels = raised(Facts("", needs="labels"), Given(images=True))
    assert "got images that have no labels: pass calibration= with labels=" in str(labels)
    assert "pass --calibrate with images and their labels" in labels.message(as_typed)
    phase = raised(Facts("", needs="training", per_budget=True), Given())
    assert 'hooks=slimilar.criteria.training_hooks("soft", model, example)' in str(phase)
    assert 'criterion=slimilar.criteria.make("soft", trained=True)' in str(phase)
    typed = phase.message(as_typed)
    assert "slimilar train MODEL --for soft --flops 0.5" in typed
    assert typed.endswith("pass --trained")
