"""What all tests share: the same examples and the same random numbers every time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings

from helpers.program import Program

# A deadline fails on a busy machine, and a random example on somebody else's.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


@pytest.fixture(autouse=True)
def _fixed_seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def program(_own_cache: None) -> Iterator[Program]:
    """The real program; commands are processes of their own."""
    started = Program()
    yield started
    started.close()


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Measurements of layers stay out of the user's cache folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLIMILAR_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield
