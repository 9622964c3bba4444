"""Earlier names of options: they keep working, and the help does not show them."""

from __future__ import annotations

from typing import Any

from slimilar.cli.plain_help import PlainCommand

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
        return super().parse_args(ctx, [current(word) for word in args])
