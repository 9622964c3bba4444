"""Print the size of the code: `python scripts/code_numbers.py [src/slimilar ...]`, one column for each tree."""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(trees: dict[Path, ast.Module]) -> Iterator[tuple[str, Function]]:
    """Yield every function with the name of its file."""
    for file, tree in trees.items():
        yield from ((file.stem, n) for n in ast.walk(tree) if isinstance(n, Function))


def parameters(function: Function) -> int:
    """Return how many parameters a function has, without `self` and `cls`."""
    given = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    return sum(a.arg not in ("self", "cls") for a in given)


def lines(function: Function) -> int:
    """Return how many lines a function takes, docstring included."""
    return (function.end_lineno or function.lineno) - function.lineno + 1


def numbers(root: Path) -> dict[str, str]:
    """Return what is counted below a package's folder."""
    files = {file: file.read_text(encoding="utf-8") for file in sorted(root.rglob("*.py"))}
    trees = {file: ast.parse(text) for file, text in files.items()}
    found = list(functions(trees))
    longest = max(found, key=lambda f: lines(f[1]))
    inner = [f for f in found if "cli" not in str(root / f[0]) and f[1].name not in ("prune", "analyze")]
    widest = max(inner, key=lambda f: parameters(f[1]))
    classes = Counter(
        n.name for tree in trees.values() for n in ast.walk(tree) if isinstance(n, ast.ClassDef)
    )
    entries = [p for p in root.iterdir() if p.name not in ("__pycache__", "py.typed")]
    return {
        "files": str(len(files)),
        "lines": str(sum(text.count("\n") for text in files.values())),
        "entries at the top": str(len(entries)),
        "longest file": _most({str(f.relative_to(root)): t.count("\n") for f, t in files.items()}),
        "longest function": f"{lines(longest[1])} ({longest[0]}.{longest[1].name})",
        "mean function": f"{sum(lines(f) for _, f in found) / len(found):.1f}",
        "most parameters inside": f"{parameters(widest[1])} ({widest[0]}.{widest[1].name})",
        "functions with more than 10": str(sum(parameters(f) > 10 for _, f in found)),
        "class names used twice": str(sum(count > 1 for count in classes.values())),
    }


def _most(counts: dict[str, int]) -> str:
    name = max(counts, key=lambda n: counts[n])
    return f"{counts[name]} ({name})"


def main() -> None:
    """Print the numbers of all trees that are named, side by side."""
    roots = [Path(word) for word in sys.argv[1:]] or [Path("src/slimilar")]
    columns = [numbers(root) for root in roots]
    for name in columns[0]:
        sys.stdout.write(f"{name:<28}" + "".join(f"{column[name]:<44}" for column in columns) + "\n")


if __name__ == "__main__":
    main()
