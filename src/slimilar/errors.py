"""Everything that Slimilar raises on purpose.

    SlimilarError
    ├── InvalidInput          an argument does not have the expected form
    ├── TraceError            the model could not be run on its example input
    ├── NothingToPrune        no channel of the model can be removed
    ├── UnreachableBudget     the budget is below the smallest reachable cost
    ├── VerificationError     the smaller model does not equal the masked original
    ├── StoreError            a file is not a whole, unaltered Slimilar file
    ├── DataError             a dataset or image cannot be used
    └── TrainingError         training cannot go on; the last good checkpoint is intact

Each message says what was expected, what came, and what to do. Where a message names an option, that is an `Option`
among its parts, so that the command line can print the option as it is typed there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Option:
    """An option that a message names, with a value where the message suggests one.

    >>> str(Option("min_channels")), str(Option("residual", "joint")), str(Option("resume", True))
    ('min_channels', 'residual="joint"', 'resume=True')
    """

    name: str  # as in Python
    value: str | bool | None = None
    code: str | None = None  # how Python says it, where that is more than name=value

    def __str__(self) -> str:
        if self.code is not None:
            return self.code
        if self.value is None:
            return self.name
        return f'{self.name}="{self.value}"' if isinstance(self.value, str) else f"{self.name}={self.value}"


class SlimilarError(Exception):
    """The root: catch this to catch everything that Slimilar raises on purpose.

    >>> error = InvalidInput(Option("threshold"), " must be a number from 0 to 1, got 7")
    >>> str(error), error.option
    ('threshold must be a number from 0 to 1, got 7', 'threshold')
    >>> error.message(lambda option: f"--{option.name}")
    '--threshold must be a number from 0 to 1, got 7'
    """

    def message(self, shown: Callable[[Option], str] = str) -> str:
        """Return the message, with options written as `shown` writes them."""
        return "".join(shown(part) if isinstance(part, Option) else str(part) for part in self.args)

    def __str__(self) -> str:
        return self.message()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.message()!r})"

    @property
    def option(self) -> str | None:
        """The name of the first option that the message names."""
        return next((part.name for part in self.args if isinstance(part, Option)), None)


class SlimilarWarning(UserWarning):
    """Something was done in another way than asked for, or less well; the message has the reason."""


class InvalidInput(SlimilarError, ValueError):
    """An argument does not have the expected form."""


class TraceError(SlimilarError):
    """The model could not be run on its example input."""


class NothingToPrune(SlimilarError):
    """No channel of the model can be removed."""


class UnreachableBudget(SlimilarError):
    """The budget is below the smallest reachable cost."""


class VerificationError(SlimilarError):
    """The smaller model does not equal the masked original."""


class StoreError(SlimilarError):
    """A file is not a whole, unaltered Slimilar file."""


class DataError(SlimilarError):
    """A dataset or image cannot be used."""


class TrainingError(SlimilarError):
    """Training cannot go on; the last good checkpoint is intact."""
