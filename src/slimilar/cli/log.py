"""The log: what a command shows, and the stages of its work, for `--verbose` and `--log FILE`."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

LOG = logging.getLogger("slimilar")
SHOWN, STAGE = logging.INFO, logging.DEBUG


def start_log(verbose: bool, file: Path | None) -> None:
    """Send stages to stderr if `verbose`, and everything to a file if one is given."""
    LOG.handlers.clear()
    LOG.propagate = False
    LOG.setLevel(STAGE if verbose or file is not None else logging.CRITICAL)
    if verbose:
        _add(logging.StreamHandler(sys.stderr), "%(asctime)s %(message)s", "%H:%M:%S").addFilter(
            lambda record: record.levelno == STAGE  # the rest is shown anyway
        )
    if file is not None:
        _add(logging.FileHandler(file, encoding="utf-8", delay=True), "%(asctime)s %(message)s")
        LOG.log(STAGE, "slimilar %s", " ".join(sys.argv[1:]))


def _add(handler: logging.Handler, form: str, date: str | None = None) -> logging.Handler:
    handler.setFormatter(logging.Formatter(form, date))
    LOG.addHandler(handler)
    return handler
