"""A file that holds a whole command: `prune` writes it, `slimilar run` does the same again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from slimilar._version import __version__
from slimilar.errors import DataError, InvalidInput

_NOT_RECORDED = {"json", "quiet", "force"}  # how to show it, not what to do


@dataclass(frozen=True)
class PruningRecipe:
    """The model and the options of `slimilar prune` that are not left at their defaults."""

    model: str
    options: dict[str, Any]
    digest: str | None = None  # of the model that was written


def recipe_of(context: typer.Context) -> PruningRecipe:
    """Return the recipe of the command that is running."""
    given = dict(context.params)
    model = given.pop("model")
    defaults = {p.name: p.get_default(context, call=True) for p in context.command.params}
    changed = {
        str(name): _plain(value)
        for name, value in given.items()
        if value is not None
        and value != []
        and _plain(value) != _plain(defaults.get(name))
        and name not in _NOT_RECORDED
    }
    return PruningRecipe(model, changed)


def write_recipe(file: Path, recipe: PruningRecipe, model: Path) -> Path:
    """Write a recipe, with the checksum of the model that came out."""
    import yaml

    from slimilar.deploy.file_format import inspect
    from slimilar.utils.atomic import write_text

    content = {
        "slimilar": __version__,
        "command": "prune",
        "model": recipe.model,
        "options": recipe.options,
        "digest": None if model.suffix == ".onnx" else inspect(model).info.get("digest"),
    }
    head = f"# Do the same again: slimilar run {file.name} -o FOLDER\n"
    return write_text(file, head + yaml.safe_dump(content, sort_keys=False, allow_unicode=True))


def read_recipe(file: Path, known: list[str]) -> PruningRecipe:
    """Return a recipe whose options are all known."""
    import yaml

    from slimilar.utils.suggestions import choose

    if not file.expanduser().is_file():
        what = "is a folder" if file.expanduser().is_dir() else "there is no such file"
        raise DataError(f"{file} must be a recipe that slimilar prune wrote, but {what}; check the path")
    try:
        found = yaml.safe_load(file.expanduser().read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise DataError(
            f"{file} must be a recipe that slimilar prune wrote, but reading it failed: {error}"
        ) from error
    if not isinstance(found, dict) or not isinstance(found.get("model"), str):
        raise DataError(
            f"{file} must be a recipe with a model and options, but has no model; name the recipe.yaml that "
            "slimilar prune wrote"
        )
    if found.get("command", "prune") != "prune":
        raise InvalidInput(f"{file} must be a recipe of the command prune, got {found['command']!r}")
    options = found.get("options") or {}
    if not isinstance(options, dict):
        raise DataError(f"{file} must hold options by name, got {type(options).__name__}")
    for name in options:
        choose(str(name).replace("-", "_"), known, "option of the recipe")
    digest = found.get("digest")
    return PruningRecipe(found["model"], options, digest if isinstance(digest, str) else None)


def words_of(recipe: PruningRecipe) -> list[str]:
    """Return a recipe as the words of a command line.

    >>> words_of(PruningRecipe("slimilar:demo", {"flops": "0.5", "exclude": ["a", "b"], "trained": True}))
    ['slimilar:demo', '--flops', '0.5', '--exclude', 'a', '--exclude', 'b', '--trained']
    """
    words = [recipe.model]
    for name, value in recipe.options.items():
        option = f"--{str(name).replace('_', '-')}"
        if isinstance(value, bool):
            words += [option] * value
        else:
            words += [w for v in (value if isinstance(value, list) else [value]) for w in (option, str(v))]
    return words


def _plain(value: Any) -> Any:
    """Return a value as YAML can hold it."""
    if isinstance(value, Path):
        return str(value)
    return [_plain(v) for v in value] if isinstance(value, list | tuple) else value
