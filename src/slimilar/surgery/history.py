"""What a pruned model remembers: the surgery that made it from the model of its class."""

from __future__ import annotations

from torch import nn

from slimilar.surgery.rewrite import Surgery

HISTORY = "slimilar_surgery"  # the attribute of a pruned model


def remember(model: nn.Module, small: nn.Module, now: Surgery) -> Surgery:
    """Return the surgery from the first original on, and let the smaller model remember it."""
    before = getattr(model, HISTORY, None)
    done = before.then(now) if isinstance(before, Surgery) else now
    setattr(small, HISTORY, done)
    return done
