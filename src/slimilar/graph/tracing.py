"""Run a model once, without data, and follow every channel through it.

The model is copied onto the `meta` device (shapes only, no memory, no compute) and called under a `Recorder`. Where
a model looks at values (`.item()`, an index computed on the way), the trace is run again on real tensors; where
parts of it only run in training, these are run too.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from slimilar.errors import InvalidInput, Option, TraceError
from slimilar.graph import training_only
from slimilar.graph.assumptions import Assumptions
from slimilar.graph.collector import Collector
from slimilar.graph.liveness import unused_operators
from slimilar.graph.reasons import MODEL_OUTPUT, fixed_size
from slimilar.graph.recorder import Recorder
from slimilar.graph.records import FixedWrite, Norm, Piece, Read, Reduction, Run, Trace, WeightNorm, Write
from slimilar.utils.modules import eval_view, named_parameters, on_meta
from slimilar.utils.pytree import Example, arguments, tensors_in


def trace(model: nn.Module, example: Example, assumptions: Assumptions | None = None) -> Trace:
    """Follow every channel of a model through one forward pass. The model is not touched.

    >>> import torch
    >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3))
    >>> [op.name for op in trace(net, torch.zeros(1, 3, 8, 8)).ops]
    ['aten.convolution', 'aten.native_batch_norm', 'aten.relu', 'aten.convolution']
    """
    assumptions = assumptions or Assumptions()
    try:
        empty = on_meta(model)
        found = _trace(empty, example, assumptions, meta=True)
        return _with_training(empty, example, assumptions, found)
    except InvalidInput:
        raise
    except Exception as shapes_only:
        if any(t.is_meta for t in model.parameters()):
            raise TraceError(_rejected(example, shapes_only)) from shapes_only
        return replace(_trace_on_values(model, example, assumptions), why_values=_first_line(shapes_only))


def _trace(model: nn.Module, example: Example, assumptions: Assumptions, meta: bool) -> Trace:
    """Run a copy of the model, and return what was found."""
    found = Collector()
    recorder = Recorder(model, found, assumptions, meta)
    outputs = recorder.forward(example)
    values, ops = recorder.values.known, recorder.ops
    found.freeze(tuple(f for i in outputs for f in values[i].labels), MODEL_OUTPUT)
    for write in found.facts(Write):
        if ops[write.op].module in assumptions.fixed_layers:
            found.freeze((torch.from_numpy(write.atoms),), fixed_size("the code works at this width only"))
    found.freeze_at_constants()
    unused = unused_operators(ops, outputs)  # whatever these do to channels, nobody sees it
    return Trace(
        values=tuple(values), ops=tuple(ops), axes=tuple(found.axes), atom_count=found.atom_count,
        ties=found.ties.pairs(sums=False), sums=found.ties.pairs(sums=True), writes=tuple(found.facts(Write)),
        reads=tuple(found.facts(Read)), norms=tuple(found.facts(Norm)), integers=tuple(found.integers),
        freezes=tuple(f for f in found.freezes if f.op not in unused), runs=found.atoms(Run), pieces=found.atoms(Piece),
        inputs=recorder.inputs, outputs=outputs, constants=recorder.constants(),
        parameters={name: tuple(p.shape) for name, p in named_parameters(model).items()}, meta=meta,
        reductions=tuple(found.facts(Reduction)), fixed_writes=tuple(found.facts(FixedWrite)),
        weight_norms=tuple(dict.fromkeys(found.facts(WeightNorm))),
    )  # fmt: skip


def _with_training(model: nn.Module, example: Example, assumptions: Assumptions, found: Trace) -> Trace:
    """Add what is known about parts that only run in training; where they cannot be run, they are named."""
    if not training_only.enable(model, found):
        return found
    try:
        both = training_only.merge(found, _trace(model, example, assumptions, meta=True))
    except Exception as error:
        return training_only.with_unused(model, found, error)
    return training_only.with_unused(model, both)


def _trace_on_values(model: nn.Module, example: Example, assumptions: Assumptions) -> Trace:
    try:
        copy = eval_view(model)
    except Exception as error:
        raise TraceError(
            f"the model must be one that can be copied, but copying {type(model).__name__} raised "
            f"{type(error).__name__}: {error} (pass the module inside of it that computes)"
        ) from error
    try:
        return _trace(copy, example, assumptions, meta=False)
    except InvalidInput:
        raise
    except Exception as error:
        shape = Option("input", "SHAPE", "an example of the shape that the model takes")
        raise TraceError(_rejected(example, error), " (pass ", shape, ")") from error


def _rejected(example: Example, error: Exception) -> str:
    args, kwargs = arguments(example)
    shapes = [tuple(t.shape) for t in tensors_in((args, kwargs))]
    given = f"shapes {shapes}" if shapes else "no tensor"
    return (
        f"the model must run on its example input, but on {given} its forward raised "
        f"{type(error).__name__}: {_first_line(error)}"
    )


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), "")
