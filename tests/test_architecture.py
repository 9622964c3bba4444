"""The architecture: which package may import which, who may print, and names that occur once."""

from __future__ import annotations

import ast
import doctest
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import slimilar

ROOT = Path(slimilar.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))

# Bottom first. A package imports from lower layers and from itself, never from a higher one.
# CONTRIBUTING.md has the picture, and says what goes where.
LAYERS = [
    {"errors", "_version"},
    {"utils"},
    {"graph", "models", "data"},
    {"similarity"},
    {"surgery"},
    {"planning"},
    {"calibration", "result"},
    {"reconstruction"},
    {"train"},  # below the criteria: a training phase is a criterion's, and is made of training's hooks
    {"criteria"},
    {"deploy"},
    {"pipeline"},
    {"comparison"},
    {"slimilar"},  # the package's own __init__
    {"report"},
    {"cli", "__main__"},
]
EXCEPTIONS: set[tuple[str, str]] = set()
HEIGHT = {name: height for height, layer in enumerate(LAYERS) for name in layer}


def module_of(file: Path) -> str:
    """Return a file's dotted name below the package: `plan`, `models.vgg`, or `slimilar` for the package."""
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts) or "slimilar"


MODULES = {module_of(file): ast.parse(file.read_text(), str(file)) for file in FILES}


def runtime_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Walk a tree, also into functions, but not into `if TYPE_CHECKING:`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        yield node
        yield from runtime_nodes(node)


def imported_names(module: str) -> Iterator[str]:
    """Yield everything a module imports, as dotted names."""
    for node in runtime_nodes(MODULES[module]):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: relative import; write it out"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def imported_modules(module: str) -> set[str]:
    """Return which modules of the package a module imports."""
    found = set()
    for name in imported_names(module):
        if name == "slimilar" or name.startswith("slimilar."):
            inner = name.removeprefix("slimilar").removeprefix(".")
            while inner and inner not in MODULES:  # a.b.Thing -> a.b
                inner = inner.rpartition(".")[0]
            found.add(inner or "slimilar")
    return {other for other in found - {module} if (module, other) not in EXCEPTIONS}


def top(module: str) -> str:
    return module.partition(".")[0]


@pytest.mark.parametrize("module", MODULES)
def test_imports_only_go_down(module):
    if top(module).startswith("_") and module != "__main__":
        return
    assert top(module) in HEIGHT, f"give {module} a place in LAYERS of {Path(__file__).name}"
    for other in imported_modules(module):
        if top(other) in HEIGHT:
            assert HEIGHT[top(other)] <= HEIGHT[top(module)], (
                f"{module} must not import {other}, which is above it"
            )


def test_the_layers_are_few():
    assert len(LAYERS) <= 16


@pytest.mark.parametrize("module", [m for m in MODULES if m not in ("slimilar", "__main__")])
def test_no_module_has_the_name_of_one_of_the_standard_library(module):
    assert module.rpartition(".")[2] not in sys.stdlib_module_names, (
        "who runs Python in its folder gets it instead"
    )


def test_no_import_goes_in_a_circle():
    state: dict[str, str] = {}

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert state.get(module) != "open", f"imports go in a circle: {' -> '.join((*path, module))}"
        if module not in state:
            state[module] = "open"
            for other in sorted(imported_modules(module)):
                # A package and the modules inside it are one thing seen from outside.
                if top(other) != top(module):
                    visit(other, (*path, module))
            state[module] = "done"

    for module in MODULES:
        visit(module, ())


PURE = [
    m
    for m in MODULES
    if top(m) == "similarity" or m in ("calibration.activations", "calibration.gaussian_moments")
]


@pytest.mark.parametrize("module", PURE)
def test_similarity_knows_no_network(module):
    assert not any(name.startswith("torch.nn") for name in imported_names(module))
    for node in ast.walk(MODULES[module]):
        assert "nn" not in (getattr(node, "attr", None), getattr(node, "id", None)), f"line {node.lineno}"


@pytest.mark.parametrize("module", [module for module in MODULES if top(module) == "report"])
def test_the_report_sees_no_weights(module):
    assert not any(top(name) == "torch" for name in imported_names(module))


@pytest.mark.parametrize("module", [module for module in MODULES if top(module) not in ("cli", "__main__")])
def test_only_the_command_line_prints_or_exits(module):
    speaks = {
        "print",
        "exit",
        "quit",
        "sys.exit",
        "os._exit",
        "sys.stdout.write",
        "sys.stderr.write",
        "SystemExit",
    }
    for node in ast.walk(MODULES[module]):
        if isinstance(node, ast.Call):
            assert ast.unparse(node.func) not in speaks, f"{module}, line {node.lineno}"
        if isinstance(node, ast.Raise) and node.exc is not None:
            assert ast.unparse(node.exc).split("(")[0] != "SystemExit", f"{module}, line {node.lineno}"


# --- names and sizes ------------------------------------------------------------------------------------------------

# Functions whose parameters are options of users: the public surface. Commands take theirs in groups.
PUBLIC = {
    "pipeline.analysis.analyze",
    "pipeline.application.apply",
    "pipeline.pruning.prune",
    "criteria.training.training_hooks",
}
MOST_PARAMETERS = 10


def test_every_class_has_a_name_of_its_own():
    homes: dict[str, list[str]] = {}
    for module, tree in MODULES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(module)
    assert not {name: found for name, found in homes.items() if len(found) > 1}


def functions(module: str) -> Iterator[tuple[str, int]]:
    """Yield every function of a module with its number of parameters."""
    for node in ast.walk(MODULES[module]):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            given = node.args
            yield node.name, len([*given.posonlyargs, *given.args, *given.kwonlyargs])


@pytest.mark.parametrize("module", MODULES)
def test_functions_have_few_parameters(module):
    long = {name: count for name, count in functions(module) if count > MOST_PARAMETERS}
    assert not {name for name in long if f"{module}.{name}" not in PUBLIC}, (
        "make a dataclass of what belongs together"
    )


def defined(module: str) -> set[str]:
    """Return the names that a module defines itself, at its top level."""
    found: set[str] = set()
    pending = list(MODULES[module].body)
    for node in pending:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.For | ast.With):
            found |= {
                n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
            }
        elif isinstance(node, ast.If | ast.Try):
            pending += [*node.body, *node.orelse]
    return found


def is_package(module: str) -> bool:
    return module == "slimilar" or any(other.startswith(f"{module}.") for other in MODULES)


@pytest.mark.parametrize("module", MODULES)
def test_names_are_imported_from_where_they_are_defined(module):
    """So that no module but a package's `__init__` re-exports what another one defines."""
    for node in ast.walk(MODULES[module]):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("slimilar."):
            source = str(node.module).removeprefix("slimilar.")
            if source in MODULES and not is_package(source):
                borrowed = {alias.name for alias in node.names} - defined(source)
                assert not borrowed, f"{source} does not define {', '.join(sorted(borrowed))}"


@pytest.mark.parametrize("module", [module for module in MODULES if module != "__main__"])
def test_docstring_examples(module):
    name = "slimilar" if module == "slimilar" else f"slimilar.{module}"
    assert doctest.testmod(importlib.import_module(name)).failed == 0
