"""Help without types that say nothing: Typer would show `--force <bool>`, as if a value had to follow."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup


class PlainCommand(TyperCommand):
    """A command whose flags stand alone in its help."""

    def get_params(self, ctx: Any) -> Any:
        """Return the parameters, with `--help`."""
        return _plain(super().get_params(ctx))


class PlainGroup(TyperGroup):
    """A group of commands, likewise."""

    def get_params(self, ctx: Any) -> Any:
        """Return the parameters, with `--help`."""
        return _plain(super().get_params(ctx))


def _plain(parameters: Any) -> Any:
    for parameter in parameters:
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
        if parameter.param_type_name == "argument":
            parameter.display_type_rich = (
                _no_type  # its name stands there already; not asked for by older versions
            )
    return parameters


def _no_type(ctx: Any) -> None:
    return None
