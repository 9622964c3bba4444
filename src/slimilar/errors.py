"""Everything that Slimilar raises on purpose.

    SlimilarError
    ├── InvalidInput          an argument is not what was asked for
    ├── TraceError            the model could not be run on its example input
    ├── NothingToPrune        no channel of the model can be removed
    ├── UnreachableBudget     the budget is below the smallest reachable cost
    ├── VerificationError     the smaller model does not equal the masked original
    ├── StoreError            a file is not a whole, unaltered Slimilar file
    ├── DataError             a dataset or image cannot be used
    └── TrainingError         training cannot go on; the last good checkpoint is intact

Each message says what was expected, what came, and what to do.
"""

from __future__ import annotations


class SlimilarError(Exception):
    """The root: catch this to catch everything that Slimilar raises on purpose."""


class InvalidInput(SlimilarError, ValueError):
    """An argument is not what was asked for."""


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
