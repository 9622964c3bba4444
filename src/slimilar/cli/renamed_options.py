"""Earlier names of options: they keep working, and the help does not show them."""

from __future__ import annotations

from typing import Any

from slimilar.cli.plain_help import PlainCommand
from slimilar.utils.wording import listed

RENAMED = {
    "--substitute": "--reconstruction",
    "--pictures": "--images",
    "--train-pictures": "--train-images",
    "--test-pictures": "--test-images",
}


def current(word: str) -> str:
    """Return a word of a command line with an option's earlier name replaced by its present one.

    >>> current("--pictures"), current("--substitute=none"), current("pictures")
    ('--images', '--reconstruction=none', 'pictures')
    """
    name, equals, value = word.partition("=")
    return RENAMED.get(name, name) + equals + value


class Command(PlainCommand):
    """A command that also takes the earlier names of its options."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words of a command line."""
        try:
            return super().parse_args(ctx, [current(word) for word in args])
        except Exception as error:
            _name_commands(ctx, error)
            raise


def _name_commands(ctx: Any, error: Any) -> None:
    """Add to an error about an unknown option which other commands have it, in place of names that look alike."""
    option = getattr(error, "option_name", None)
    commands = getattr(ctx.find_root().command, "commands", {})
    having = [name for name, command in commands.items() if any(option in p.opts for p in command.params)]
    if option is not None and having:
        error.possibilities = []
        error.message = f"No such option: {option} of {ctx.info_name}; it is one of {listed(having, most=5)}"
