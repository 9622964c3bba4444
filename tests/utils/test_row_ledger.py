"""Rows are written once, survive a kill at any byte, and are found again."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path

import pytest

from slimilar.errors import StoreError
from slimilar.utils.row_ledger import RowLedger, contains


def test_an_interrupted_run_goes_on(tmp_path):
    ledger = RowLedger(tmp_path / "rows.jsonl")
    ledger.row({"k": 1}, lambda: {"v": 10})
    with pytest.raises(KeyboardInterrupt):
        ledger.row({"k": 2}, lambda: (_ for _ in ()).throw(KeyboardInterrupt))
    again = RowLedger(tmp_path / "rows.jsonl")
    assert again.row({"k": 1}, lambda: {"v": 99})["v"] == 10
    assert again.row({"k": 2}, lambda: {"v": 20})["v"] == 20
    assert [row["v"] for row in RowLedger(tmp_path / "rows.jsonl").rows] == [10, 20]


def test_a_file_cut_at_any_byte_goes_on(tmp_path):
    """Whole rows stay, the row that was cut is ignored, and the next append removes its rest."""
    whole, cut = tmp_path / "whole.jsonl", tmp_path / "cut.jsonl"
    ledger = RowLedger(whole, {"seed": 0})
    for k in range(3):
        ledger.append({"k": k})
    content = whole.read_bytes()
    for size in range(len(content) + 1):
        cut.write_bytes(content[:size])
        kept = RowLedger(cut, {"seed": 0})
        lines = content[:size].count(b"\n")
        assert [row["k"] for row in kept.rows] == list(range(max(0, lines - 1)))
        if lines:
            kept.append({"k": "new"})
            assert [row["k"] for row in RowLedger(cut).rows] == [*range(lines - 1), "new"]
            assert RowLedger(cut).header == {"seed": 0}


def _append(path: Path, who: int) -> None:
    ledger = RowLedger(path)
    for k in range(50):
        ledger.append({"who": who, "k": k, "text": "x" * 5000})


def test_processes_may_append_at_once(tmp_path):
    file = tmp_path / "rows.jsonl"
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_append, args=(file, who)) for who in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    ledger = RowLedger(file)
    assert len(ledger.rows) == 100
    assert all([row["k"] for row in ledger.all(who=who)] == list(range(50)) for who in range(2))


def test_the_newest_row_counts(tmp_path):
    ledger = RowLedger(tmp_path / "rows.jsonl")
    for v in (1, 2):
        ledger.append({"k": 1, "v": v})
    assert ledger.find(k=1) == {"k": 1, "v": 2}
    assert ledger.find(k=3) is None


def test_rows_say_who_made_them_and_how_long_it_took(tmp_path):
    told = []
    first = RowLedger(tmp_path / "rows.jsonl", {"seed": 0}, stamp={"commit": "a"}, notify=told.append)
    first.row({"k": 1}, dict)
    RowLedger(tmp_path / "rows.jsonl", {"seed": 0}, stamp={"commit": "b"}).row(
        {"k": 2}, lambda: {"seconds": 7}
    )
    found = RowLedger(tmp_path / "rows.jsonl")
    assert [row["commit"] for row in found.rows] == ["a", "b"]
    assert found.rows[0]["seconds"] >= 0
    assert found.rows[1]["seconds"] == 7
    assert all(row["cpu"] >= 0 for row in found.rows)
    assert told == found.rows[:1]


@pytest.mark.parametrize("wanted", [{"settings": {"a": 2}, "seed": 0}, {"settings": {"a": 1}, "seed": 7}])
def test_rows_of_other_settings_are_not_mixed(tmp_path, wanted):
    RowLedger(tmp_path / "rows.jsonl", {"settings": {"a": 1}, "seed": 0}).row({"k": 1}, dict)
    with pytest.raises(StoreError, match="must have been made with the same"):
        RowLedger(tmp_path / "rows.jsonl", wanted)


def test_an_old_header_stays(tmp_path):
    RowLedger(tmp_path / "rows.jsonl", {"seed": 0, "started": "then"}).append({"k": 1})
    again = RowLedger(tmp_path / "rows.jsonl", {"seed": 0, "started": "now"})
    again.append({"k": 2})
    assert again.header["started"] == "then"
    assert json.loads((tmp_path / "rows.jsonl").read_text().splitlines()[0]) == {"header": again.header}


@pytest.mark.parametrize("content", ['{"rows": \n{"k": 1}\n', "[1]\n"])
def test_a_broken_row_is_not_passed_over(tmp_path, content):
    (tmp_path / "rows.jsonl").write_text(content)
    with pytest.raises(StoreError, match=r"rows.jsonl must hold one .* per line"):
        RowLedger(tmp_path / "rows.jsonl")


def test_rows_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="could not be written"):
        RowLedger(tmp_path / "file" / "rows.jsonl").append({"k": 1})


def test_settings_may_hold_more_than_is_wanted():
    held = {"scale": {"test": 100, "size": 3}, "networks": [{"name": "a", "old": 1}]}
    assert contains(held, {"scale": {"test": 100}, "networks": [{"name": "a"}], "new": False})
    assert not contains(held, {"networks": [{"name": "a"}, {"name": "b"}]})
