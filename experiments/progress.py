"""The progress of a training, printed."""

from __future__ import annotations

import sys

from slimilar.train import Progress


def show_progress(event: Progress) -> None:
    """Print a line."""
    line = f"epoch {event.epoch}/{event.epochs} step {event.step}/{event.steps} loss {event.loss:.4f}"
    line += f" accuracy {event.accuracy:.4f} {event.images_per_second:.0f} images/s"
    if event.test_accuracy is not None:
        line += f" | test {event.test_accuracy:.4f}"
    print(line, file=sys.stderr, flush=True)
