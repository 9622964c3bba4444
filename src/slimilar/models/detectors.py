"""Detectors of ultralytics, as networks whose every operator can be replayed on images."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from slimilar.errors import InvalidInput

_FEATURES = "feats"  # what the head reads: no output, or the neck would have to keep its widths


class RawPredictions(nn.Module):
    """A detector up to what its head predicts: boxes, scores, and masks, keypoints or angles where it has them.

    The head decodes boxes in Python, by anchors that it keeps from call to call, and returns what it reads, too. Prune
    this module instead, with calibration images, and use the pruned detector inside of it:

        small = slimilar.prune(RawPredictions(yolo.model), images[:1], flops=0.6, calibration=images)
        yolo.model = small.model.unwrapped()

    `detector` is the module that ``YOLO(...).model`` holds; it is copied by pruning, and not changed.
    """

    def __init__(self, detector: nn.Module) -> None:
        super().__init__()
        if not is_detector(detector):
            raise InvalidInput(
                "detector must be the module of an ultralytics network with a head for boxes, as YOLO(...).model, got "
                f"{type(detector).__name__}"
            )
        self.detector = detector

    def forward(self, images: Tensor) -> list[Tensor]:
        """Return the predictions of all anchors, not decoded."""
        layers: Any = self.detector.model
        head, mode = layers[-1], layers[-1].training
        head.training = True  # the head alone: its batch norms stay as they are
        try:
            return list(_predictions(self.detector(images)))
        finally:
            head.training = mode

    def unwrapped(self) -> nn.Module:
        """Return the detector for ultralytics: in evaluation mode, without the loss that a checkpoint brings along.

        Splits that are written with a width of their own for export get the width that there is now.
        """
        detector: Any = self.detector.eval()
        detector.criterion = None  # made again by its trainer, on the device that it trains on
        for block in detector.modules():
            if hasattr(block, "forward_split"):
                block.c = block.cv1.conv.out_channels // 2
        found: nn.Module = detector
        return found


def is_detector(model: nn.Module) -> bool:
    """Tell whether a module is one of an ultralytics network with a head for boxes."""
    layers = getattr(model, "model", None)
    last = layers[-1] if isinstance(layers, nn.Sequential) and len(layers) else None
    return isinstance(getattr(last, "stride", None), Tensor)  # of its anchors; a convolution's is a tuple


def _predictions(found: Any) -> Iterator[Tensor]:
    """Yield the tensors of nested results, without the features they were computed from."""
    if isinstance(found, Tensor):
        yield found
    elif isinstance(found, Mapping):
        for name, value in found.items():
            if name != _FEATURES:
                yield from _predictions(value)
    elif isinstance(found, list | tuple):
        for value in found:
            yield from _predictions(value)
