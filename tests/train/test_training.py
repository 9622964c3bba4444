"""Training on small real images: it learns, and does what its parts promise."""

from __future__ import annotations

import copy
import importlib.util
import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from helpers.digits import digits, fingerprint, network
from slimilar.data import Images, Samples
from slimilar.errors import DataError, InvalidInput, TrainingError
from slimilar.train import (
    BEST,
    LAST,
    Distillation,
    Hooks,
    Progress,
    Recipe,
    Settings,
    evaluate,
    finetune,
    objective,
    train,
)
from slimilar.train.average import Average
from slimilar.train.batches import Epoch, Sweep, batches
from slimilar.train.log import read_log

TRAIN, TEST = digits(0, 600), digits(1200)
SHORT = Recipe(epochs=2, batch_size=32, lr=0.1, schedule="one-cycle", warmup=0.2)
QUIET = Settings(tensorboard=False)


@pytest.fixture(scope="module")
def trained():
    return train(network(), TRAIN, replace(SHORT, epochs=5), test=TEST)


def test_it_learns(trained):
    assert trained.accuracy > 0.85
    assert trained.history[-1].loss < trained.history[0].loss / 2
    assert trained.accuracy == evaluate(trained.model, TEST).accuracy
    assert not trained.model.training
    assert all(p.requires_grad for p in trained.model.parameters())


def test_the_callers_model_and_random_numbers_are_untouched():
    model, state = network().eval(), torch.get_rng_state()
    before = fingerprint(model)
    result = train(model, TRAIN, replace(SHORT, epochs=1))
    assert fingerprint(model) == before != fingerprint(result.model)
    assert not model.training
    assert torch.equal(torch.get_rng_state(), state)


def test_frozen_weights_stay_frozen():
    model = network()
    model[0].requires_grad_(False)
    result = train(model, TRAIN.first(64), replace(SHORT, ema=0.5)).model
    assert torch.equal(result[0].weight, model[0].weight)
    assert [p.requires_grad for p in result.parameters()] == [p.requires_grad for p in model.parameters()]


def statistics(model):
    return [b for name, b in model.named_buffers() if "running" in name]


@pytest.mark.parametrize("freeze", [True, False])
def test_statistics_stay_where_they_are_frozen(freeze, tmp_path):
    """Two epochs, with a look at the test images between them, and all else learns."""
    model = train(network(), TRAIN.first(64), SHORT).model
    recipe = replace(SHORT, epochs=2, freeze_statistics=freeze)
    result = train(model, TRAIN.first(64), recipe, test=TEST.first(50), folder=tmp_path).model
    kept = [torch.equal(a, b) for a, b in zip(statistics(model), statistics(result), strict=True)]
    assert kept
    assert all(kept) if freeze else not any(kept)
    assert not any(map(torch.equal, model.parameters(), result.parameters()))
    with pytest.raises(InvalidInput, match=r"freeze_statistics must be"):
        train(
            model,
            TRAIN.first(64),
            replace(recipe, freeze_statistics=not freeze),
            folder=tmp_path,
            resume=True,
        )


def test_frozen_statistics_are_those_that_the_steps_use():
    """One step by hand, through the network in evaluation mode."""
    model = train(network(), TRAIN.first(64), SHORT).model
    recipe = Recipe(epochs=1, batch_size=64, lr=0.05, weight_decay=0.0, freeze_statistics=True)
    result = train(model, TRAIN.first(64), recipe).model
    images, labels, _ = Epoch(TRAIN.first(64), 64, seed=0, epoch=0)[0]
    model.eval().zero_grad()  # gradients of its own training
    F.cross_entropy(model(images), labels).backward()
    for ours, plain in zip(result.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(ours, plain - 0.05 * 1.9 * plain.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("clip", [None, 0.5])
def test_training_equals_a_plain_loop(clip):
    """The first epoch by hand: the same batches through torch's own optimiser and loss."""
    model = network()
    recipe = Recipe(epochs=1, batch_size=50, lr=0.05, label_smoothing=0.1, clip=clip)
    result = train(model, TRAIN.first(230), recipe, settings=Settings(seed=7))
    optimiser = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, nesterov=True, weight_decay=1e-4)
    epoch = Epoch(TRAIN.first(230), 50, seed=7, epoch=0)
    for step in range(len(epoch)):
        images, labels, _ = epoch[step]
        optimiser.zero_grad()
        F.cross_entropy(model(images), labels, label_smoothing=0.1).backward()
        length = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
        if clip is not None:
            assert length > clip
            for p in model.parameters():
                p.grad *= clip / length
        optimiser.step()
    for ours, plain in zip(result.model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-5, atol=1e-6)


def test_any_pytorch_dataset():
    pairs = TensorDataset(TRAIN.tensor()[:64], TRAIN.labels[:64])
    result = train(network(), pairs, SHORT, test=pairs)
    assert len(result.history) == 2
    assert (
        result.accuracy
        == evaluate(result.model, pairs).accuracy
        == evaluate(result.model, TRAIN.first(64)).accuracy
    )
    with pytest.raises(InvalidInput, match=r"got generator; pass loader.dataset"):
        train(network(), (pair for pair in pairs), SHORT)


# -- batches --------------------------------------------------------------------------------------------------


def test_an_epoch_sees_every_picture_once():
    images = Images(torch.zeros(103, 2, 2, 1, dtype=torch.uint8), torch.arange(103))
    seen = [int(i) for step in range(7) for i in Epoch(images, 16, seed=0, epoch=0)[step].labels]
    assert sorted(seen) == list(range(103))
    assert seen != list(range(103))
    other = Epoch(images, 16, seed=0, epoch=1)[0].labels
    assert not torch.equal(other, torch.tensor(seen[:16]))


@pytest.mark.parametrize(("images", "steps"), [(96, 3), (97, 3), (98, 4)])
def test_a_last_batch_of_one_is_left_out(images, steps):
    assert len(Epoch(TRAIN.first(images), 32, 0, 0)) == steps


@pytest.mark.parametrize("world", [2, 3])
def test_processes_share_a_batch(world):
    whole = Epoch(TRAIN.first(70), 32, seed=1, epoch=2)
    shares = [Epoch(TRAIN.first(70), 32, 1, 2, rank, world) for rank in range(world)]
    for step in range(len(whole)):
        for rank, share in enumerate(shares):
            assert torch.equal(share[step].images, whole[step].images[rank::world])
            assert share[step].total == len(whole[step].labels)


def test_too_little_to_train_on():
    with pytest.raises(
        InvalidInput, match="batch_size must give at least two images for each of 2 processes"
    ):
        Epoch(TRAIN, 3, 0, 0, world=2)
    with pytest.raises(DataError, match="at least two training images"):
        train(network(), TRAIN.first(1), SHORT)
    with pytest.raises(DataError, match="at least one image"):
        evaluate(network(), TRAIN.first(0))


def test_labels_without_a_score():
    with pytest.raises(DataError, match="labels must be 0 to 9 for 10 scores, got -1 to -1"):
        train(network(), replace(TRAIN, labels=torch.full_like(TRAIN.labels, -1)), SHORT)
    with pytest.raises(DataError, match="got 5 to 14"):
        train(network(), replace(TRAIN, labels=TRAIN.labels + 5), SHORT)
    with pytest.raises(InvalidInput, match=r"scores \(images, classes\), got shape \(32, 16, 2, 2\)"):
        train(network()[:8], TRAIN, SHORT)


# -- what is minimised -----------------------------------------------------------------------------------------


def test_distillation_is_hintons():
    scores, teacher = torch.randn(6, 4, dtype=torch.float64), torch.randn(6, 4, dtype=torch.float64)
    labels = torch.arange(6) % 4
    soft_teacher, soft = (teacher / 3).softmax(1), (scores / 3).log_softmax(1)
    divergence = (soft_teacher * (soft_teacher.log() - soft)).sum() / 6
    expected = 0.4 * F.cross_entropy(scores, labels) + 0.6 * 9 * divergence
    got = objective(scores, labels, 0.0, teacher, Distillation(temperature=3, weight=0.6))
    torch.testing.assert_close(got, expected)


def test_a_student_that_equals_its_teacher_has_nothing_to_learn_from_it():
    scores, labels = torch.randn(5, 3), torch.zeros(5, dtype=torch.long)
    alone = objective(scores, labels, 0.0, scores, Distillation(weight=1))
    assert abs(alone) < 1e-6


def test_a_teacher_helps_where_labels_are_wrong(trained):
    """All labels are wrong; what is right can only come from the teacher."""
    wrong = replace(TRAIN, labels=(TRAIN.labels + 1) % 10)
    settings = Settings(distillation=Distillation(weight=1.0))
    teacher = copy.deepcopy(trained.model).train()
    before = fingerprint(teacher)
    taught = train(
        network(seed=1), wrong, replace(SHORT, epochs=4), test=TEST, teacher=teacher, settings=settings
    )
    assert taught.accuracy > 0.7
    assert fingerprint(teacher) == before
    assert teacher.training


@pytest.mark.parametrize("wrong", [{"temperature": 0.0}, {"weight": 1.5}])
def test_wrong_distillation(wrong):
    with pytest.raises(InvalidInput, match=f"{next(iter(wrong))} must be"):
        Distillation(**wrong)


# -- averaged weights -------------------------------------------------------------------------------------------


def test_average_is_a_moving_average():
    model = nn.BatchNorm1d(1)
    average = Average(model, decay=0.5)
    values = []
    expected, mean = 1.0, 0.0
    for step, weight in enumerate([2.0, 4.0, -1.0]):
        nn.init.constant_(model.weight, weight)
        model.running_mean.fill_(weight)
        average.update(model)
        decay = min(0.5, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * weight
        values.append(expected)
        assert float(average.model.weight) == pytest.approx(expected)
        mean = decay * mean + (1 - decay) * weight
        assert float(average.model.running_mean) == pytest.approx(mean)
    assert average.steps == 3


def test_training_returns_the_average(tmp_path):
    settings = replace(QUIET, log_every=100)
    plain = train(network(), TRAIN, SHORT, settings=settings)
    averaged = train(
        network(), TRAIN, replace(SHORT, ema=0.99), test=TEST, folder=tmp_path, settings=settings
    )
    last = load_file(tmp_path / LAST)
    assert torch.equal(last["model.0.weight"], plain.model[0].weight)
    assert torch.equal(last["average.0.weight"], averaged.model[0].weight)
    assert not torch.equal(plain.model[0].weight, averaged.model[0].weight)


# -- hooks ----------------------------------------------------------------------------------------------------


def test_regulariser_drives_gammas_down():
    def sparsity(model):
        return 0.05 * sum(m.weight.abs().sum() for m in model if isinstance(m, nn.BatchNorm2d))

    plain = train(network(), TRAIN, SHORT).model
    sparse = train(network(), TRAIN, SHORT, hooks=Hooks(regulariser=sparsity)).model
    assert sparse[1].weight.abs().mean() < 0.7 * plain[1].weight.abs().mean()


def test_after_step_can_shrink_weights_to_zero():
    rates = []

    def shrink(model, lr):
        rates.append(lr)
        model[1].weight.copy_(F.softshrink(model[1].weight, lr))

    result = train(network(), TRAIN, SHORT, hooks=Hooks(after_step=shrink))
    assert (result.model[1].weight == 0).any()
    assert rates == pytest.approx([SHORT.learning_rate(step / 19) for step in range(38)])


def test_on_epoch_end_comes_before_evaluation_and_saving(tmp_path):
    calls = []

    def prune_softly(model, epoch):
        calls.append(epoch)
        model[0].weight[:4] = 0

    hooks = Hooks(on_epoch_end=prune_softly)
    result = train(network(), TRAIN, SHORT, test=TEST, folder=tmp_path, hooks=hooks, settings=QUIET)
    assert calls == [1, 2]
    assert not load_file(tmp_path / LAST)["model.0.weight"][:4].any()
    assert result.accuracy == evaluate(result.model, TEST).accuracy


# -- what is told and kept ---------------------------------------------------------------------------------------


def test_log_progress_and_files(tmp_path):
    told: list[Progress] = []
    settings = Settings(log_every=5)
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


def test_tied_weights_are_saved_and_resumed(tmp_path):
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.Linear(64, 10))
    model[3].weight = model[1].weight
    first = train(model, TRAIN, SHORT, test=TEST, folder=tmp_path, settings=QUIET)
    again = train(model, TRAIN, SHORT, test=TEST, folder=tmp_path, settings=QUIET, resume=True)
    assert again.model[3].weight is again.model[1].weight
    assert fingerprint(first.model) == fingerprint(again.model)


def test_tensorboard_holds_the_same_numbers(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train(network(), TRAIN, SHORT, test=TEST, folder=tmp_path)
    board = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    log = [entry for entry in read_log(tmp_path) if "test_accuracy" in entry]
    assert [event.step for event in board.Scalars("test_accuracy")] == [entry["step"] for entry in log]
    assert [event.value for event in board.Scalars("loss")] == pytest.approx([e["loss"] for e in log])


def test_finetune_tells_where_it_started(trained):
    result = finetune(trained.model, TRAIN, replace(SHORT, epochs=1, lr=0.001), test=TEST)
    assert result.start_accuracy == trained.accuracy
    assert abs(result.accuracy - trained.accuracy) < 0.05


def test_evaluate_equals_a_count_by_hand(trained):
    model = copy.deepcopy(trained.model)
    model.train()
    model[1].eval()
    score = evaluate(model, TEST, batch_size=77)
    assert [m.training for m in model][:3] == [True, False, True]
    with torch.no_grad():
        scores = trained.model(TEST.tensor())
    assert score.accuracy == pytest.approx(float((scores.argmax(1) == TEST.labels).double().mean()))
    near = (scores.argsort(1, descending=True)[:, :5] == TEST.labels[:, None]).any(1)
    assert score.top5 == pytest.approx(float(near.double().mean()))
    assert score.loss == pytest.approx(float(F.cross_entropy(scores, TEST.labels)), rel=1e-5)
    assert score.images == len(TEST)


def test_cpu_never_gets_bfloat16_by_itself():
    assert Settings().autocast_dtype(torch.device("cpu")) is None
    assert Settings(precision="bfloat16").autocast_dtype(torch.device("cpu")) is torch.bfloat16


@pytest.mark.parametrize("wrong", [{"seed": -1}, {"precision": "half"}, {"save_every": 0}, {"log_every": 0}])
def test_wrong_settings(wrong):
    with pytest.raises(InvalidInput, match=f"{next(iter(wrong))} must"):
        Settings(**wrong)


def test_an_existing_run_is_not_overwritten(tmp_path):
    train(network(), TRAIN, SHORT, folder=tmp_path, settings=QUIET)
    before = (tmp_path / LAST).read_bytes()
    with pytest.raises(TrainingError, match="already holds a run; pass resume=True"):
        train(network(), TRAIN, SHORT, folder=tmp_path)
    with pytest.raises(InvalidInput, match=r"lr must be 0.1 as in the run .* got 0.2"):
        train(network(), TRAIN, replace(SHORT, lr=0.2), folder=tmp_path, resume=True)
    with pytest.raises(InvalidInput, match="needs folder="):
        train(network(), TRAIN, SHORT, resume=True)
    assert (tmp_path / LAST).read_bytes() == before


def test_a_finished_run_resumes_to_itself(tmp_path):
    first = train(network(), TRAIN, SHORT, test=TEST, folder=tmp_path, settings=QUIET)
    again = train(network(), TRAIN, SHORT, test=TEST, folder=tmp_path, settings=QUIET, resume=True)
    assert fingerprint(first.model) == fingerprint(again.model)
    assert first.history == again.history
    assert json.loads(json.dumps(read_log(tmp_path)))[-1]["test_accuracy"] == again.accuracy


# -- evaluation ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("world", [1, 2, 3])
def test_a_sweep_sees_every_picture_once(world):
    images = Images(torch.zeros(52, 2, 2, 1, dtype=torch.uint8), torch.arange(52))
    shares = [batch.labels for rank in range(world) for batch in batches(Sweep(images, 17, rank, world))]
    assert torch.cat(shares).sort().values.tolist() == list(range(52))


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # from Python 3.12 on, whoever forks
def test_worker_processes_make_the_same_batches():
    pairs = TensorDataset(TRAIN.tensor()[:40], TRAIN.labels[:40])
    for kind in (Sweep, lambda source, size: Epoch(source, size, seed=0, epoch=0)):
        here, beside = (list(batches(kind(Samples(pairs, workers), 16), 1)) for workers in (0, 1))
        assert len(here) == len(beside) == 2
        assert all(torch.equal(a.images, b.images) for a, b in zip(here, beside, strict=True))
