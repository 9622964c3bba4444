"""The documentation is consistent: links lead somewhere, examples compile, quoted results were printed."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from helpers.paths import BENCHMARKS, DOCS, ROOT
from slimilar.comparison import Terms

PAGES = [
    *sorted(DOCS.glob("*.md")),
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    ROOT / "experiments" / "README.md",
]
RESULTS = BENCHMARKS / "results"


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives the headings of a page."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if link.startswith("https://"):
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_examples_compile(page: Path) -> None:
    for code in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
        compile(code, page.name, "exec")


def test_the_terms_of_the_comparison_are_accepted() -> None:
    (call,) = re.findall(
        r"^terms = (Terms\(.*\))$", (DOCS / "compare.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert eval(call, {"Terms": Terms}).epochs == 2


def test_accuracies_of_the_comparison_are_those_of_its_tables() -> None:
    text = (DOCS / "compare.md").read_text(encoding="utf-8")
    files = [RESULTS / "compare" / "comparison.md", *RESULTS.glob("compare-lr/clipped/*/comparison.md")]
    printed = set(re.findall(r"\b\d+\.\d\d\b", "".join(file.read_text() for file in files)))
    quoted = set(re.findall(r"(?<![-+\d])\d+\.\d\d\b", text.split("## Results")[1]))
    assert len(quoted) > 40
    assert quoted <= printed


def test_accuracies_in_the_readme_are_those_of_the_benchmark() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    printed = "".join((RESULTS / name).read_text() for name in ("accuracy.md", "finetune.md"))
    quoted = set(re.findall(r"\b\d\d\.\d\d(?= %| to )", text.split("**Published")[1]))
    assert len(quoted) > 15
    assert {number for number in quoted if f" {number} " not in printed} == set()


def test_classes_in_the_architecture_exist() -> None:
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    names = re.findall(r"^\| `(slimilar\.[\w.]+)\.(\w+)`", text, re.MULTILINE)
    assert len(names) > 10
    for module, name in names:
        assert isinstance(getattr(importlib.import_module(module), name), type), f"{module}.{name}"


def test_glossary_terms_are_unique_and_used() -> None:
    terms = re.findall(r"^### (.*)$", (DOCS / "glossary.md").read_text(encoding="utf-8"), re.MULTILINE)
    elsewhere = "".join(
        page.read_text(encoding="utf-8") for page in PAGES if page.name != "glossary.md"
    ).lower()
    assert len(terms) == len(set(terms))
    for term in terms:
        assert any(word.strip().lower() in elsewhere for word in term.split(",")), term
