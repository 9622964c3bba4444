"""Train, get killed by SIGKILL, resume; print what came of it. Run by tests/train/test_crash.py.

One process imports torch and then forks for every run, so that a run costs milliseconds, not seconds. It uses
a single thread and never computes anything itself: a process that has done so must not fork.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import accelerate  # noqa: F401 (imported here once, not in every child; the same for _dynamo, which SGD imports)
import torch
import torch._dynamo

from helpers.digits import digits, fingerprint, network
from slimilar.train import LAST, Recipe, TrainingSettings, train
from slimilar.train.training_log import read_log

RECIPE = Recipe(epochs=3, batch_size=50, lr=0.05, milestones=(2,), label_smoothing=0.1, ema=0.9)
DATA, TEST = digits(0, 260), digits(260, 460)


class Fuse:
    """Counts moments at which something could go wrong, and kills the process at one of them."""

    def __init__(self, at: int | None) -> None:
        self.left = at
        self.count = 0

    def __call__(self, *_: object) -> None:
        self.count += 1
        if self.left is not None and self.count > self.left:
            os.kill(os.getpid(), signal.SIGKILL)

    def around(self, function: Callable[..., object]) -> Callable[..., object]:
        def fused(*args: object) -> object:
            self()
            answer = function(*args)
            self()
            return answer

        return fused


def run(folder: Path, kill_at: int | None) -> str:
    """Train to the end, unless killed at a step, or before or after a file is synced or put in place."""
    fuse = Fuse(kill_at)
    for name in ("fsync", "replace"):
        setattr(os, name, fuse.around(getattr(os, name)))
    settings = TrainingSettings(seed=3, save_every=2, log_every=1, tensorboard=False)
    result = train(
        network(dropout=0.2), DATA, RECIPE,
        test=TEST, folder=folder, resume=True, settings=settings, progress=fuse,
    )  # fmt: skip
    log = read_log(folder)
    state = [fingerprint(result.model), hashlib.sha256((folder / LAST).read_bytes()).hexdigest()]
    return json.dumps({"state": state, "log": log, "moments": fuse.count})


def forked(folder: Path, kill_at: int | None, seconds: float | None = None) -> str | None:
    """Run in a child; return what it says, or None when it was killed."""
    answer = folder.with_suffix(".answer")
    child = os.fork()
    if child == 0:
        answer.write_text(run(folder, kill_at))
        os._exit(0)
    if seconds is not None:
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return None
    assert status == 0, status
    return answer.read_text()


def main(place: Path, kills: int) -> None:
    torch.set_num_threads(1)
    began = time.perf_counter()
    whole = json.loads(forked(place / "whole", None) or "{}")
    lasted = time.perf_counter() - began
    chance = random.Random(0)
    moments = [0, whole["moments"] - 1, *chance.sample(range(whole["moments"]), kills)]
    trials: list[tuple[str, int | None, float | None]] = [(f"moment {m}", m, None) for m in moments]
    trials += [(f"time {i}", None, chance.random() * lasted) for i in range(kills // 2)]
    wrong, killed = [], 0
    for name, at, seconds in trials:
        folder = place / name.replace(" ", "-")
        killed += forked(folder, at, seconds) is None
        # Once more on the way to the end, so that a resumed run is killed as well.
        killed += forked(folder, whole["moments"] // 3) is None
        end = json.loads(forked(folder, None) or "{}")
        wrong += [name] if (end["state"], end["log"]) != (whole["state"], whole["log"]) else []
        shutil.rmtree(folder)
    sys.stdout.write(json.dumps({"trials": len(trials), "killed": killed, "wrong": wrong}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
