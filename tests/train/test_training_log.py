"""The log, the progress function, TensorBoard and the files hold the same numbers."""

from __future__ import annotations

import importlib.util

import pytest
from safetensors.torch import load_file

from helpers.digits import network
from helpers.short_training import SHORT, TEST, TRAIN
from slimilar.train import (
    BEST,
    LAST,
    Progress,
    TrainingSettings,
    evaluate,
    train,
)
from slimilar.train.training_log import read_log


def test_log_progress_and_files(tmp_path):
    told: list[Progress] = []
    settings = TrainingSettings(log_every=5)
    result = train(
        network(), TRAIN, SHORT, test=TEST, folder=tmp_path, settings=settings, progress=told.append
    )
    log = read_log(tmp_path)
    assert [entry["step"] for entry in log] == [5, 10, 15, 19, 24, 29, 34, 38]
    assert [entry["loss"] for entry in log] == [event.loss for event in told]
    ends = [event for event in told if event.test_accuracy is not None]
    assert [event.test_accuracy for event in ends] == [record.test_accuracy for record in result.history]
    assert all(event.images_per_second > 0 for event in told)
    best = max(result.history, key=lambda record: record.test_accuracy)
    network_again = network(seed=9)
    network_again.load_state_dict(load_file(tmp_path / BEST))
    assert evaluate(network_again, TEST).accuracy == best.test_accuracy
    board = ["tensorboard"] if importlib.util.find_spec("tensorboard") else []
    assert sorted(path.name for path in tmp_path.iterdir()) == [BEST, LAST, "log.jsonl", *board]


def test_tensorboard_holds_the_same_numbers(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train(network(), TRAIN, SHORT, test=TEST, folder=tmp_path)
    board = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    log = [entry for entry in read_log(tmp_path) if "test_accuracy" in entry]
    assert [event.step for event in board.Scalars("test_accuracy")] == [entry["step"] for entry in log]
    assert [event.value for event in board.Scalars("loss")] == pytest.approx([e["loss"] for e in log])
