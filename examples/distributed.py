"""Fine-tune a pruned network on many GPUs, in a training loop of your own with `accelerate`.

    accelerate launch examples/distributed.py --images photos --flops 0.5 --epochs 3

The pruned network is an ordinary module: what trains the original trains it. Here it learns what the original answers,
so images need no labels. Every process prunes by itself, with the same seed, and gets the same network.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from accelerate import Accelerator
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import slimilar
from slimilar.data import unlabelled
from slimilar.models import demo_network
from slimilar.train.training_mode import set_training


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=Path, required=True)
    parser.add_argument("--flops", type=float, default=0.5)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("distributed-small.safetensors"))
    args = parser.parse_args(arguments)
    accelerator = Accelerator(cpu=not torch.accelerator.is_available())
    original = demo_network()  # your trained network
    images = unlabelled(args.images, size=32).tensor()
    small = slimilar.prune(original, images[:1], flops=args.flops, calibration=images[:256]).model

    optimiser = torch.optim.SGD(small.parameters(), lr=0.003, momentum=0.9, nesterov=True)
    loader = DataLoader(TensorDataset(images), batch_size=32, shuffle=True)
    student, optimiser, loader = accelerator.prepare(small, optimiser, loader)
    original.to(accelerator.device)
    set_training(student, freeze_statistics=True, dropout=False)  # keep what the fit kept
    for epoch in range(args.epochs):
        for (batch,) in loader:
            with torch.no_grad():
                wanted = original(batch).log_softmax(1)
            loss = F.kl_div(student(batch).log_softmax(1), wanted, reduction="batchmean", log_target=True)
            optimiser.zero_grad()
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(student.parameters(), 1.0)
            optimiser.step()
        accelerator.print(f"epoch {epoch + 1}: divergence from the original {loss.item():.4f}")
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        slimilar.save(accelerator.unwrap_model(student), args.out)


if __name__ == "__main__":
    main()
