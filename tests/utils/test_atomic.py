"""A file has its old content or its new content, whatever happens in between."""

from __future__ import annotations

import os
import stat

import pytest

from slimilar.utils.atomic import replacing, write_bytes, write_text


@pytest.mark.parametrize("single_writer", [True, False])
def test_an_interruption_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, single_writer):
    def interrupted(handle):
        raise KeyboardInterrupt

    file = write_bytes(tmp_path / "file", b"old", single_writer=single_writer)
    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_bytes(file, b"new", single_writer=single_writer)
    assert file.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [file]


def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path):
    file = write_text(tmp_path / "new folder" / "file.txt", "old")

    def fails():
        with replacing(file) as temporary:
            temporary.write_text("new")
            raise ValueError

    with pytest.raises(ValueError):
        fails()
    assert file.read_text() == "old"
    assert list(file.parent.iterdir()) == [file]


def test_a_single_writer_leaves_no_pile_of_leftovers(tmp_path):
    """What a killed process left is overwritten by the next write."""
    with replacing(tmp_path / "a.txt", single_writer=True) as first:
        first.write_text("1")
    first.write_text("left by a kill")
    with replacing(tmp_path / "a.txt", single_writer=True) as second:
        assert second == first
        second.write_text("2")
    assert [file.name for file in tmp_path.iterdir()] == ["a.txt"]
    assert (tmp_path / "a.txt").read_text() == "2"


@pytest.mark.skipif(os.name != "posix", reason="permissions are POSIX")
@pytest.mark.parametrize("single_writer", [True, False])
def test_others_may_read_as_usual(tmp_path, single_writer):
    plain = tmp_path / "plain"
    plain.write_text("")
    ours = write_bytes(tmp_path / "ours", b"", single_writer=single_writer)
    assert stat.S_IMODE(ours.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)


def test_the_temporary_file_keeps_the_suffix(tmp_path):
    """Libraries choose a format by it."""
    for single_writer in (True, False):
        with replacing(tmp_path / "a.png", single_writer=single_writer) as temporary:
            assert temporary.suffix == ".png"
            temporary.write_text("")
