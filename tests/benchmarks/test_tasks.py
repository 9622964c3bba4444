"""The parts of the benchmark of tasks: boxes that match, letters that are read, tables."""

from __future__ import annotations

import json
from collections import defaultdict
from statistics import mean

import numpy as np
import pytest
import torch
from _finetune.table import table as finetune_table
from _finetune.tunings import CHOSEN, FLOPS, VARIATIONS, schedule, trials
from _tasks.plates import CALIBRATION, SIZE, TRAIN, letterboxed, matched, photos
from _tasks.table import table
from _tasks.text import _plain, _read
from PIL import Image

from helpers.paths import BENCHMARKS


def rows(name: str) -> list[dict[str, object]]:
    text = (BENCHMARKS / "results" / f"{name}.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def test_a_box_counts_once():
    """Two boxes on one plate are one hit; one of half the area overlaps by exactly half."""
    plate = torch.tensor([[0.0, 0, 10, 10]])
    twice = torch.tensor([[0.0, 0, 10, 10], [1, 0, 10, 10]])
    assert matched([twice], [plate]) == {"precision": 50.0, "recall": 100.0}
    assert matched([torch.tensor([[0.0, 0, 5, 10]])], [plate]) == {"precision": 100.0, "recall": 100.0}
    assert matched([torch.tensor([[0.0, 0, 4.9, 10]])], [plate]) == {"precision": 0.0, "recall": 0.0}
    assert matched([torch.empty(0, 4)], [plate]) == {"precision": 0.0, "recall": 0.0}
    far = torch.tensor([[50.0, 50, 60, 60]])
    assert matched([torch.cat([plate, far]), plate], [plate, torch.cat([plate, far])]) == {
        "precision": 66.67,
        "recall": 66.67,
    }


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "plates" / "eu").mkdir(parents=True)
    for i in range(CALIBRATION + TRAIN + 9):
        file = tmp_path / "plates" / "eu" / f"{i:03}.jpg"
        file.with_suffix(".txt").write_text(f"{file.name}\t10\t20\t30\t15\tAB{i}\n")
    Image.fromarray(np.full((20, 40, 3), 255, np.uint8)).save(tmp_path / "plates" / "eu" / "000.jpg")
    for i in range(1, CALIBRATION + TRAIN + 9):
        (tmp_path / "plates" / "eu" / f"{i:03}.jpg").touch()
    return tmp_path


def test_photos_never_meet_and_boxes_have_corners(folder):
    parts = photos(folder, 0)
    assert [len(p) for p in parts] == [CALIBRATION, TRAIN, 9]
    names = [photo.file.name for part in parts for photo in part]
    assert len(set(names)) == len(names)
    assert parts[0][0].plates.tolist() == [[10, 20, 40, 35]]
    assert photos(folder, 0)[0][0].file != photos(folder, 1)[0][0].file


def test_a_photo_is_scaled_and_padded(folder):
    (whole,) = [p for part in photos(folder, 0) for p in part if p.file.name == "000.jpg"]
    (image,) = letterboxed([whole])
    assert image.shape == (3, SIZE, SIZE)
    assert float(image[0, SIZE // 2, SIZE // 2]) == 1
    assert float(image[0, 0, 0]) == pytest.approx(114 / 255)
    assert int((image[0] == 1).sum()) == SIZE * SIZE // 2


def test_letters_are_read_once_where_they_are_repeated():
    letters = ["", "A", "B", "-"]
    scores = torch.nn.functional.one_hot(torch.tensor([[1, 1, 0, 1, 3, 2, 2, 0]])).float()
    assert _read(torch.nn.Identity(), scores, letters) == ["AAB"]
    assert _plain("ab-1 2") == "AB12"


def test_the_pages_hold_every_row():
    """Rows that differ in nothing but the seed make one line, with their mean."""
    page, psnr = table(rows("tasks")), defaultdict(list)
    for row in rows("tasks"):
        if row["task"] == "denoise":
            psnr[row["method"], row["flops"]].append(row["psnr"])
    assert psnr
    assert all(f"| {mean(found):.2f} " in page for found in psnr.values())
    tuned, chosen = rows("finetune"), rows("finetune-choice")
    page = finetune_table(tuned, chosen)
    setting = ("network", "flops", "start", "tuning", "epochs", "training images", "precision")
    settings = {tuple(row[name] for name in setting) for row in tuned}
    assert page.count("\n| vgg16") + page.count("\n| resnet56") == len(settings)
    assert page.count("\n| prune()") + page.count("\n| similarity") == len(chosen)


def test_all_starts_are_tuned_at_equal_cost_and_epochs():
    runs = list(schedule())
    assert len(set(runs)) == len(runs)
    for network in FLOPS:
        for epochs in (1, 3, 10):
            assert {start for n, start, _, e in runs if (n, e) == (network, epochs)} == set(CHOSEN)
    assert runs[0] == ("vgg16-cifar10", "auto", "reconstructed", 1)
    assert all(name in VARIATIONS for *_, name in trials())
