"""The architecture: which package may import which, who may print, and names that occur once."""

from __future__ import annotations

import ast
import doctest
import functools
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


@functools.cache
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


# Over all modules in one test, so that the suite does not consist of these: each names who breaks it.


def test_every_module_has_a_layer():
    placed = [m for m in MODULES if not top(m).startswith("_") or m == "__main__"]
    assert not [m for m in placed if top(m) not in HEIGHT], (
        f"give it a place in LAYERS of {Path(__file__).name}"
    )


def test_imports_only_go_down():
    pairs = [(m, other) for m in MODULES for other in imported_modules(m)]
    known = [(m, other) for m, other in pairs if top(m) in HEIGHT and top(other) in HEIGHT]
    assert len(known) > 1000
    assert not [f"{m} imports {o}, above it" for m, o in known if HEIGHT[top(o)] > HEIGHT[top(m)]]


def test_the_layers_are_few():
    assert len(LAYERS) <= 16


def test_no_module_has_the_name_of_one_of_the_standard_library():
    """Who runs Python in its folder would get it instead."""
    names = {m: m.rpartition(".")[2] for m in MODULES if m not in ("slimilar", "__main__")}
    assert not [m for m, name in names.items() if name in sys.stdlib_module_names]


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


SPEAKS = {
    "print",
    "exit",
    "quit",
    "sys.exit",
    "os._exit",
    "sys.stdout.write",
    "sys.stderr.write",
    "SystemExit",
}


def speaking(module: str) -> Iterator[str]:
    """Yield the places where a module prints or exits."""
    for node in ast.walk(MODULES[module]):
        called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
        raised = ast.unparse(node.exc) if isinstance(node, ast.Raise) and node.exc is not None else ""
        if called in SPEAKS or raised.split("(")[0] == "SystemExit":
            yield f"{module}, line {node.lineno}"


def test_only_the_command_line_prints_or_exits():
    assert list(speaking("cli"))  # it does, so that the search finds something
    assert not [place for m in MODULES if top(m) not in ("cli", "__main__") for place in speaking(m)]


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


def test_functions_have_few_parameters():
    long = {f"{m}.{name}" for m in MODULES for name, count in functions(m) if count > MOST_PARAMETERS}
    assert long >= PUBLIC - {"criteria.training.training_hooks"}
    assert not long - PUBLIC, "make a dataclass of what belongs together"


@functools.cache
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


def borrowed(module: str) -> Iterator[str]:
    """Yield what a module imports from another one that does not define it, packages aside."""
    for node in ast.walk(MODULES[module]):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("slimilar."):
            source = str(node.module).removeprefix("slimilar.")
            if source in MODULES and not is_package(source):
                names = {alias.name for alias in node.names} - defined(source)
                yield from (f"{module}: {source} does not define {name}" for name in sorted(names))


def test_names_are_imported_from_where_they_are_defined():
    """So that no module but a package's `__init__` re-exports what another one defines."""
    assert not [line for module in MODULES for line in borrowed(module)]


@pytest.mark.parametrize("package", sorted({top(module) for module in MODULES} - {"__main__"}))
def test_docstring_examples(package):
    inside = [m for m in MODULES if top(m) == package]
    names = ["slimilar" if m == "slimilar" else f"slimilar.{m}" for m in inside]
    assert not [name for name in names if doctest.testmod(importlib.import_module(name)).failed]
