"""Prune an ImageNet classifier with the images at hand and fine-tune it on them, guarded against overfitting.

    python examples/classify.py mobilenet_v2 --weights weights.pth --images imagenet --flops 0.75 --epochs 5

`imagenet` has one folder for each class. A few images a class are soon learnt by heart, so every fifth image is held
out: the epoch that is best there is taken, and none if the pruned network itself is. Labels are used for that choice
alone; the network learns from what the original answers.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import torch

import slimilar
from slimilar.data import image_folder
from slimilar.train import Distillation, TrainingSettings, evaluate, finetune, recipe
from slimilar.utils.torchvision_compat import import_torchvision


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--weights", type=Path, help="a state dict; random weights without")
    parser.add_argument("--images", type=Path, required=True)
    parser.add_argument("--flops", type=float, default=0.75)
    parser.add_argument("--epochs", type=int, default=5)
    args = parser.parse_args(arguments)
    images = image_folder(args.images)
    model = (
        import_torchvision("torchvision.models")
        .get_model(args.model, num_classes=len(images.class_names))
        .eval()
    )
    if args.weights:
        model.load_state_dict(torch.load(args.weights, weights_only=True))
    held = torch.arange(len(images)) % 5 == 4
    train, held_out = images.at(torch.nonzero(~held).flatten()), images.at(torch.nonzero(held).flatten())
    calibration = train.batch(torch.randperm(len(train))[:256])[0]
    small = slimilar.prune(model, calibration[:1], flops=args.flops, calibration=calibration).model

    best, kept = evaluate(small, held_out).accuracy, small
    print(
        f"original {evaluate(model, held_out).accuracy:.1%}, pruned {best:.1%} of {len(held_out)} held-out images"
    )
    tuning = replace(recipe("reconstructed"), batch_size=32, lr=0.001)
    unlabelled = TrainingSettings(distillation=Distillation(weight=1.0))
    for epochs in range(1, args.epochs + 1):  # a whole cycle each: the rate ends at zero
        tuned = finetune(
            small, train, replace(tuning, epochs=epochs), teacher=model, settings=unlabelled
        ).model
        accuracy = evaluate(tuned, held_out).accuracy
        print(f"{epochs} epochs: {accuracy:.1%}")
        if accuracy <= best:
            break
        best, kept = accuracy, tuned
    slimilar.save(kept, "classifier-small.safetensors", source=f"torchvision:{args.model}")


if __name__ == "__main__":
    main()
