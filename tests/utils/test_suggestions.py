"""Names that users type."""

from __future__ import annotations

import pytest

from slimilar.errors import InvalidInput
from slimilar.utils.suggestions import choose

KNOWN = ["vgg16", "resnet20", "resnet56"]


def test_a_known_name_is_returned():
    assert choose("resnet20", KNOWN, "network") == "resnet20"


def test_the_nearest_names_are_offered():
    with pytest.raises(
        InvalidInput, match=r"network must be one of the 3 .* got 'resnet2': did you mean resnet20"
    ):
        choose("resnet2", KNOWN, "network")


@pytest.mark.parametrize("name", ["", 7, None, "completely different"])
def test_without_a_near_name_some_are_listed(name):
    with pytest.raises(InvalidInput, match=r"there are for instance vgg16, resnet20, resnet56"):
        choose(name, KNOWN, "network")
