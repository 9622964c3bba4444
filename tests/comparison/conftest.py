"""A comparison that several files look at."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.comparing import TERMS, subject
from slimilar.comparison import Comparison, compare


@pytest.fixture(scope="session")
def whole(tmp_path_factory) -> tuple[Path, Comparison]:
    """A comparison that ran through in one go."""
    folder = tmp_path_factory.mktemp("whole")
    return folder, compare(subject(), TERMS, folder, threads=1)
