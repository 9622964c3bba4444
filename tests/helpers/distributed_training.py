"""Train in the processes that a launcher started; each writes its result. Run by tests/train/test_distributed.py."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import torch

from helpers.digits import digits, network
from slimilar.train import Hooks, Recipe, TrainingSettings, train
from slimilar.train.distributed import DistributedContext

# 41 images remain for the last batch: an odd number, so that the shares of two processes differ.
RECIPE = Recipe(epochs=3, batch_size=64, lr=0.1, milestones=(2,), ema=0.9)
MAX_IMAGES = 64 * 4 + 41


def sparse(model: torch.nn.Module) -> torch.Tensor:
    norms = [m for m in model.modules() if isinstance(m, torch.nn.BatchNorm2d)]
    return 1e-3 * torch.stack([norm.weight.abs().sum() for norm in norms]).sum()


def run(folder: Path) -> dict[str, object]:
    settings = TrainingSettings(seed=1, log_every=1, tensorboard=False)
    result = train(
        network(), digits(0, MAX_IMAGES), RECIPE,
        test=digits(500, 701), folder=folder, hooks=Hooks(regulariser=sparse), settings=settings,
        teacher=network(seed=5),
    )  # fmt: skip
    state = {name: tensor.tolist() for name, tensor in result.model.state_dict().items()}
    return {"history": [asdict(record) for record in result.history], "state": state}


if __name__ == "__main__":
    torch.set_num_threads(1)
    place, answer = Path(sys.argv[1]), run(Path(sys.argv[1]) / "run")
    context = DistributedContext.join()
    (place / f"answer-{context.rank}-of-{context.world_size}.json").write_text(json.dumps(answer))
    if context.world_size > 1:
        torch.distributed.destroy_process_group()
