"""Run a model once, without data, and follow every channel through it.

The model is copied onto the `meta` device (shapes only, no memory, no compute) and called under a dispatch mode,
the `Tracer`. Where a model looks at values (`.item()`, an index computed on the way), the trace is run again on real
tensors; where parts of it only run in training, these are run too.
"""

from __future__ import annotations

from torch import nn

from slimilar.errors import InvalidInput, TraceError
from slimilar.graph import training_only as unseen
from slimilar.graph.records import Choices, Trace
from slimilar.graph.tracer import Tracer
from slimilar.utils.modules import on_meta, shadow
from slimilar.utils.pytree import Example, arguments, tensors_in


def trace(model: nn.Module, example: Example, choices: Choices | None = None) -> Trace:
    """Follow every channel of a model through one forward pass. The model is not touched.

    >>> import torch
    >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3))
    >>> [op.name for op in trace(net, torch.zeros(1, 3, 8, 8)).ops if "empty" not in op.name]
    ['aten.convolution', 'aten.native_batch_norm', 'aten.relu', 'aten.convolution']
    """
    choices = choices or Choices()
    try:
        small = on_meta(model)
        return _with_training(small, example, choices, Tracer(small, choices, meta=True).run(example))
    except InvalidInput:
        raise
    except Exception as shapes_only:
        if any(t.is_meta for t in model.parameters()):
            raise TraceError(_rejected(example, shapes_only)) from shapes_only
        return _trace_on_values(model, example, choices)


def _with_training(model: nn.Module, example: Example, choices: Choices, seen: Trace) -> Trace:
    """Add what is known about parts that only run in training; where they cannot be run, they are left alone."""
    if not unseen.wake(model, seen):
        return seen
    try:
        return unseen.merge(seen, Tracer(model, choices, meta=True).run(example))
    except Exception as error:
        return unseen.tell(model, seen, error)


def _trace_on_values(model: nn.Module, example: Example, choices: Choices) -> Trace:
    try:
        small = shadow(model)
    except Exception as error:
        raise TraceError(
            f"the model must be one that can be copied, but copying {type(model).__name__} raised "
            f"{type(error).__name__}: {error} (pass the module inside of it that computes)"
        ) from error
    try:
        return Tracer(small, choices, meta=False).run(example)
    except InvalidInput:
        raise
    except Exception as error:
        raise TraceError(_rejected(example, error)) from error


def _rejected(example: Example, error: Exception) -> str:
    args, kwargs = arguments(example)
    shapes = [tuple(t.shape) for t in tensors_in((args, kwargs))]
    given = f"shapes {shapes}" if shapes else "no tensor"
    lines = str(error).strip().splitlines()
    return (
        f"the model must run on its example input, but on {given} its forward raised "
        f"{type(error).__name__}: {lines[0] if lines else ''} "
        "(pass an example of the shape that the model takes)"
    )
