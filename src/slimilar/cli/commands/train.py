"""`slimilar train`."""

from __future__ import annotations

from pathlib import Path

from slimilar.cli import options
from slimilar.cli.model_options import ModelOptions
from slimilar.cli.output import Output
from slimilar.cli.training_options import TrainingOptions
from slimilar.cli.training_phase import PhaseOptions
from slimilar.cli.training_run import TrainingCommand


def train(
    model: options.Model,
    *,
    training: TrainingOptions = TrainingOptions(recipe="one-cycle", out=Path("trained")),
    source: ModelOptions,
    phase: PhaseOptions,
    out: Output,
) -> None:
    """Train a model. Runs can be interrupted at any time and resumed; torchrun and accelerate are supported.

    Example: [bold]slimilar train slimilar:resnet20 --data cifar10.npz -o runs/resnet20[/]
    """
    training.check()
    source.check(model)
    import torch

    torch.manual_seed(training.seed)
    opened = source.open(model).placed(training.device)
    TrainingCommand(out, opened, training, learns_classes=True)(phase=phase)
