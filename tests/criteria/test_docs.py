"""docs/criteria.md keeps its word: its examples run in order, its table is the declared one."""

from __future__ import annotations

import re

from helpers.paths import DOCS
from slimilar import criteria

TEXT = (DOCS / "criteria.md").read_text(encoding="utf-8")


def test_the_table_is_what_the_criteria_declare() -> None:
    assert f"\n\n{criteria.properties_table()}\n\n" in TEXT, "put in slimilar.criteria.properties_table()"
    rivals = "slimming structured-sparsity duplicates geometric-median thinet channel-lasso soft taylor random bn-scale"
    assert {"similarity", "span", "magnitude-l1", "magnitude-l2", *rivals.split()} <= set(
        criteria.available()
    )


def test_the_declarations_are_those_of_the_papers_table() -> None:
    """Automatic, and works on pre-trained networks: as in table 1 of the paper."""
    printed = {
        "Ours": (True, True), "NS": (True, False), "SSL": (True, False), "RDF": (True, True),
        "PFGM": (False, True), "SFP": (False, True), "TN": (False, True), "CP": (False, True),
    }  # fmt: skip
    known = [criteria.facts(name) for name in criteria.available()]
    assert {f.tag: (f.automatic, f.pretrained) for f in known if f.tag} == printed


def test_every_criterion_is_described() -> None:
    described = {
        n for names in re.findall(r"^- \*\*(.*?)\*\*", TEXT, re.MULTILINE) for n in names.split(", ")
    }
    assert described == set(criteria.available())


def test_the_examples_run() -> None:
    found: dict[str, object] = {}
    try:
        for code in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL):
            exec(compile(code, "criteria.md", "exec"), found)
            result = found["result"]
            assert result.cut.flops <= 0.5 * result.cut.before.flops  # type: ignore[attr-defined]
        assert result.plan.criterion == "roughest"  # type: ignore[attr-defined]
    finally:
        criteria._KNOWN.pop("roughest", None)
