"""CONTRIBUTING.md shows the packages that exist, in the order that the architecture test enforces."""

from __future__ import annotations

import re
from pathlib import Path

import slimilar
from helpers.paths import ROOT
from test_architecture import LAYERS

TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
PACKAGE = Path(slimilar.__file__).parent
SHOWN_AS = {"slimilar": "__init__"}
UNSHOWN = {"_version", "__main__"}


def layers_shown() -> list[set[str]]:
    """Return the names at the left of each line of the picture: they are separated from the sentence by two spaces."""
    (picture,) = re.findall(r"```\nerrors.*?```", TEXT, re.DOTALL)
    lines = [line[:28].split() for line in picture.splitlines()]
    return [set(names) for names in lines if names and names[0] not in ("|", "```")]


def test_the_picture_shows_the_layers_in_order() -> None:
    enforced = [{SHOWN_AS.get(name, name) for name in layer} - UNSHOWN for layer in LAYERS]
    assert layers_shown() == enforced


def test_the_picture_names_what_exists() -> None:
    modules = {file.stem for file in PACKAGE.glob("*.py")}
    packages = {folder.parent.name for folder in PACKAGE.glob("*/__init__.py")}
    assert set().union(*layers_shown()) == (modules | packages) - UNSHOWN


def test_every_package_has_a_sentence() -> None:
    for name in set().union(*layers_shown()):
        assert re.search(rf"^\S*{name}(?:  +\w+)* {{2,}}\S|\| +{name}: ", TEXT, re.MULTILINE), name


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"`make ([a-z-]+)", TEXT)) <= targets
