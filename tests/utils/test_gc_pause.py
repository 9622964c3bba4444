"""The garbage collector is paused, and runs again afterwards, whatever happened."""

from __future__ import annotations

import gc

import pytest

from slimilar.utils.gc_pause import collector_paused


def test_it_runs_again_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError), collector_paused():
        1 / gc.isenabled()  # it is off here
    assert gc.isenabled()


def test_who_has_switched_it_off_finds_it_off() -> None:
    gc.disable()
    try:
        with collector_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
