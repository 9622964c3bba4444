"""The documentation is consistent: links lead somewhere, examples compile, quoted results were printed."""

from __future__ import annotations

import importlib
import json
import re
import statistics
from pathlib import Path

import pytest
import typer
import yaml

import slimilar
from helpers.paths import BENCHMARKS, DOCS, ROOT
from helpers.scripts import script
from slimilar import errors
from slimilar.cli import app
from slimilar.data import demo_images

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


def test_accuracies_of_the_comparison_are_those_of_its_tables() -> None:
    text = (DOCS / "compare.md").read_text(encoding="utf-8")
    files = [RESULTS / "compare" / "comparison.md", *RESULTS.glob("compare-lr/clipped/*/comparison.md")]
    printed = set(re.findall(r"\b\d+\.\d\d\b", "".join(file.read_text() for file in files)))
    quoted = set(re.findall(r"(?<![-+\d])\d+\.\d\d\b", text.split("## Results")[1]))
    assert len(quoted) > 40
    assert quoted <= printed


@pytest.mark.parametrize(("page", "least"), [(DOCS / "benchmarks.md", 15), (ROOT / "README.md", 3)])
def test_accuracies_are_those_of_the_benchmark(page: Path, least: int) -> None:
    text = page.read_text(encoding="utf-8")
    printed = "".join((RESULTS / name).read_text() for name in ("accuracy.md", "finetune.md"))
    quoted = set(re.findall(r"\b\d\d\.\d\d(?= %| to )", text))
    assert len(quoted) > least
    assert {number for number in quoted if f" {number} " not in printed} == set()


def test_the_demo_table_is_what_was_measured() -> None:
    measured = (RESULTS / "demo.txt").read_text()
    text = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (?:original|-\d+ %) \|.*$", text, re.MULTILINE)
    assert len(rows) == 3
    for row in rows:
        for accuracy in re.findall(r"(\d+\.\d) %", row):
            assert f" {accuracy} %" in measured
        for ms in re.findall(r"(\d+\.\d) ms", row):
            assert f" {ms}" in measured


def test_the_picture_shows_the_accuracies_of_the_benchmark() -> None:
    """Its labels are text: the accuracies of our line, network by network, from the most FLOPs to the least."""
    rows = [json.loads(line) for line in (RESULTS / "accuracy.jsonl").read_text().splitlines()]
    found: list[str] = []
    for network in ("vgg16-cifar10", "resnet56-cifar10", "resnet20-cifar10"):
        mine = [r for r in rows if r.get("network") == network and r["split"] == "test"]
        method = "auto" if any(r["method"] == "auto" for r in mine) else "ours"
        labelled = {r["flops"] for r in mine if r["method"] == method} - {0.6}  # no room for a number there
        shares = sorted(labelled, reverse=True)
        by_share = [
            [r["accuracy"] for r in mine if (r["method"], r["flops"]) == (method, share)
             and r.get("calibration", 1024) == 1024]
            for share in shares
        ]  # fmt: skip
        found += [f"{statistics.mean(values):.2f}" for values in by_share if values]
    drawn = re.findall(r">(\d\d\.\d\d)</text>", (DOCS / "images" / "accuracy.svg").read_text())
    assert drawn == found, "run benchmarks/accuracy_picture.py"


def test_the_chart_of_criteria_has_their_present_names() -> None:
    """Drawn from rows that have earlier ones."""
    drawn = re.findall(r">([a-z][a-z0-9-]+) \d+\.\d</text>", (DOCS / "images" / "criteria.svg").read_text())
    program = script("criteria_chart")
    found = program.renamed(program.load(RESULTS / "compare"))
    assert set(drawn) - {"unpruned"} == {row.criterion for row in found.rows}
    assert {row.criterion for row in found.rows} == set(slimilar.criteria.available())


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


# --- the site ------------------------------------------------------------------------------------------------


def nav_pages(entries: list[object]) -> list[str]:
    """Return the files that the navigation of the site names."""
    found: list[str] = []
    for entry in entries:
        for target in entry.values() if isinstance(entry, dict) else [entry]:
            found += nav_pages(target) if isinstance(target, list) else [str(target)]
    return found


def test_every_page_is_in_the_navigation() -> None:
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert config["strict"] is True
    assert sorted(nav_pages(config["nav"])) == sorted(page.name for page in DOCS.glob("*.md"))


def test_the_reference_of_the_command_line_is_that_of_the_program() -> None:
    told = (DOCS / "cli.md").read_text(encoding="utf-8")
    assert told == script("cli_reference").reference(), "run scripts/cli_reference.py"


def test_every_command_of_the_pages_would_be_run() -> None:
    """scripts/docs_commands.py finds them, with something in place of what a reader has to put in."""
    program = script("docs_commands")
    found = [command for page in program.pages() for command in program.commands(page)]
    texts = {command.text for command in found}
    for page in [ROOT / "README.md", *DOCS.glob("*.md")]:
        for block in re.findall(r"```sh\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
            lines = [line.partition("  #")[0] for line in block.replace("\\\n", " ").splitlines()]
            assert {" ".join(line.split()) for line in lines} <= texts, page.name
    assert {
        "make demo",
        "slimilar criteria",
        "slimilar inspect FILE",
        "python benchmarks/latency.py",
    } <= texts
    assert not {"slimilar prune", "slimilar bench"} & texts  # names in a sentence
    assert not [c.run for c in found if re.search(r"\b(MODEL|FILE|NAME|FOLDER|CRITERION)\b", c.run)]


def test_every_command_of_the_pages_has_been_run() -> None:
    """`python scripts/docs_commands.py --missing` runs those that have not."""
    program = script("docs_commands")
    assert [c.text for page in program.pages() for c in program.missing(program.commands(page))] == []


def test_every_public_name_is_in_the_reference() -> None:
    named = re.findall(
        r"^::: slimilar\.([\w.]+)$", (DOCS / "api.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    documented = {name.rpartition(".")[2] for name in named}
    assert set(slimilar.__all__) - {"SlimilarError"} <= documented  # the errors are documented as a module
    for name in named:
        home, _, last = name.rpartition(".")
        assert hasattr(importlib.import_module(f"slimilar.{home}".rstrip(".")), last), name


@pytest.mark.parametrize("page", [ROOT / "README.md", *sorted(DOCS.glob("*.md"))], ids=lambda page: page.name)
def test_code_fits_the_column(page: Path) -> None:
    """As wide as a page of the site shows at 1280 pixels without scrolling."""
    blocks = re.findall(r"^```\w*\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert not [line for block in blocks for line in block.splitlines() if len(line) > 96]


def test_every_error_has_its_entry_in_troubleshooting() -> None:
    text = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
    known = {
        name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, Exception)
    }
    assert set(re.findall(r"^## (\w+)$", text, re.MULTILINE)) == known


def test_quoted_messages_are_those_of_the_program() -> None:
    """A message that the page quotes stands in the source, apart from names and numbers."""
    text = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
    code = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "src").rglob("*.py"))
    source = re.sub(r'"\s*\n\s*f?"', "", code)
    for quoted in re.findall(r'^- \*"(.+?)"\*', text, re.MULTILINE):
        for part in quoted.split(" pass --base")[0].split("..."):
            assert part.strip(" :") in source, quoted


# Pages whose examples need more than a folder to run in; each has a test of its own.
ELSEWHERE = {
    "index.md": "tests/test_readme.py",
    "criteria.md": "tests/criteria/test_docs.py",
    "detectors.md": "tests/zoo/test_detectors.py",
    "onnx.md": "tests/deploy/test_onnx_guide.py",
}
WITH_PYTHON = [
    page.name for page in sorted(DOCS.glob("*.md")) if "```python" in page.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("page", [name for name in WITH_PYTHON if name not in ELSEWHERE])
def test_snippets_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In order, in an empty folder, with fewer images: that changes how good the result is, and nothing else."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("slimilar.data.demo_images", lambda split: demo_images(split).first(32))
    names: dict[str, object] = {"__name__": "__main__"}
    for code in re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL):
        exec(compile(code, page, "exec"), names)


def test_pages_that_are_tested_elsewhere_are() -> None:
    for page, test in ELSEWHERE.items():
        assert page in WITH_PYTHON
        assert page in (ROOT / test).read_text(encoding="utf-8")


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.name)
def test_commands_of_the_pages_have_options_that_exist(page: Path) -> None:
    root = typer.main.get_command(app)
    for block in re.findall(r"```sh\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            words = line.split("#")[0].split()
            if words[:1] != ["slimilar"] or len(words) < 2 or words[1].startswith("-"):
                continue
            command = root.commands[words[1]]
            known = {name for parameter in command.params for name in parameter.opts} | {"--help"}
            assert {word for word in words[2:] if re.match(r"--?[a-z]", word)} <= known, line
