r"""Mean and standard deviation of every channel where no batch norm states them.

Eq. 4 takes a channel as $(\beta, \gamma^2)$, which a batch norm states. Exported networks have their batch norms
folded into the convolutions, and many never had any. There both moments are measured on images, or propagated from
those of the input: through convolutions as if their inputs were independent, through activations as Gaussians.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from slimilar.calibration import replay
from slimilar.calibration.gaussian_moments import MeanAndVariance, moments
from slimilar.calibration.program import Program
from slimilar.errors import InvalidInput
from slimilar.graph.activations import plain_name
from slimilar.graph.records import Op, Ref, Trace, Write
from slimilar.utils.precision import exact, has_float64

_LINEAR = ("aten.add", "aten.sub", "aten.mul", "aten.div")


# --- measured -----------------------------------------------------------------------------------------------


def measured(
    program: Program, tensors: Mapping[str, Tensor], batches: Sequence[Tensor], writes: Sequence[Write]
) -> dict[int, MeanAndVariance]:
    """Return the moments of what operators write, by operator, over all images and places."""
    held = {name: t.detach() for name, t in tensors.items()}
    ends = {write.op: _before_activation(program, write.op) for write in writes}
    sums: dict[int, tuple[Tensor, Tensor, int]] = {}
    for batch in batches:
        values, position = replay.start(program, [batch]), 0
        for write in sorted(writes, key=lambda w: ends[w.op]):
            with torch.no_grad():
                for k in range(position, ends[write.op] + 1):
                    replay.execute(program, k, values, held)
                    _forget(program, k, values, keep=ends[write.op])
            position = max(position, ends[write.op] + 1)
            found = values[program.instructions[ends[write.op]].outputs[0]]
            sums[write.op] = _added(sums.get(write.op), found, write.axis)
    return {op: _moments(*total) for op, total in sums.items()}


def _forget(program: Program, k: int, values: replay.Values, keep: int) -> None:
    instruction = program.instructions[k]
    for number in instruction.inputs:
        if program.last_use[number] <= k:
            values.pop(number, None)
    if k != keep:
        for number in instruction.outputs:
            if program.last_use[number] <= k:
                values.pop(number, None)


def _before_activation(program: Program, op: int) -> int:
    """Return the last operator behind a layer that only scales or shifts its channels: a bias kept apart."""
    while True:
        output = program.instructions[op].outputs[0]
        consumers = program.consumers(output)
        if len(consumers) != 1 or output in program.outputs:
            return op
        after = program.instructions[consumers[0]]
        name = after.func.name().split(".")[0].replace("::", ".")
        if name not in _LINEAR or len(after.inputs) != 1:
            return op
        op = consumers[0]


def _added(before: tuple[Tensor, Tensor, int] | None, found: Tensor, axis: int) -> tuple[Tensor, Tensor, int]:
    rows = found.movedim(axis, -1).flatten(0, -2)
    var, mean = torch.var_mean(rows.double() if has_float64(rows.device) else rows, 0, correction=0)
    var, mean = exact(var), exact(mean)
    total, squares, count = before or (torch.zeros_like(mean), torch.zeros_like(mean), 0)
    return total + len(rows) * mean, squares + len(rows) * (var + mean.square()), count + len(rows)


def _moments(total: Tensor, squares: Tensor, count: int) -> MeanAndVariance:
    mean = (total / count).cpu()
    return MeanAndVariance(mean, ((squares / count).cpu() - mean.square()).clamp_min(0))


# --- propagated ---------------------------------------------------------------------------------------------


def propagated(trace: Trace, tensors: Mapping[str, Tensor]) -> dict[int, MeanAndVariance]:
    """Return the moments of what operators compute, by operator, from an input of mean 0 and variance 1.

    Channels are on axis 1. Operators without a rule, and all that depend on them, are left out.
    """
    known: dict[int, MeanAndVariance] = {}
    made = {value for op in trace.ops for value in op.outputs}
    for i, value in enumerate(trace.values):
        if value.dynamic and i not in made and len(value.shape) > 1:
            known[i] = MeanAndVariance(
                torch.zeros(value.shape[1]).double(), torch.ones(value.shape[1]).double()
            )
    found = {}
    for k, op in enumerate(trace.ops):
        answer = _after(op, trace, known, tensors)
        if answer is not None and len(answer.mean) == trace.values[op.outputs[0]].shape[1]:
            known[op.outputs[0]] = found[k] = answer
    return found


def _after(
    op: Op, trace: Trace, known: Mapping[int, MeanAndVariance], tensors: Mapping[str, Tensor]
) -> MeanAndVariance | None:
    """Return the moments of what an operator computes, or None where there is no rule."""
    if not op.outputs or len(trace.values[op.outputs[0]].shape) < 2:
        return None
    given = _Operands(op, trace, known, tensors)
    kind = op.name.removeprefix("aten.").rstrip("_")
    rule = _RULES.get(kind)
    if rule is not None:
        return rule(given)
    if len(op.inputs) == 1 and op.inputs[0] in known:
        return _activation(kind, known[op.inputs[0]], op)
    return None


class _Operands:
    """The arguments of an operator: moments of computed values, numbers of held ones."""

    def __init__(
        self, op: Op, trace: Trace, known: Mapping[int, MeanAndVariance], tensors: Mapping[str, Tensor]
    ) -> None:
        self.op, self._trace, self._known, self._tensors = op, trace, known, tensors

    def moments(self, name: str) -> MeanAndVariance | None:
        """Return the moments of a computed argument, where they are known."""
        ref = self.op.arguments.get(name)
        return self._known.get(ref.value) if isinstance(ref, Ref) else None

    def all(self, name: str) -> list[MeanAndVariance | None]:
        """Return the moments of a list of arguments."""
        return [self._known.get(x.value) if isinstance(x, Ref) else None for x in self.op.arguments[name]]

    def held(self, name: str) -> Tensor | None:
        """Return a parameter or buffer, or a number, in float64."""
        ref = self.op.arguments.get(name)
        if isinstance(ref, int | float):
            return torch.tensor(float(ref)).double()
        value = self._trace.values[ref.value] if isinstance(ref, Ref) else None
        if value is None or value.name is None or value.name not in self._tensors:
            return None
        return self._tensors[value.name].detach().cpu().double()

    def per_channel(self, name: str) -> Tensor | None:
        """Return a held argument as one number for each channel of the output, or for all."""
        held, shape = self.held(name), self._trace.values[self.op.outputs[0]].shape
        if held is None or held.numel() == 1:
            return None if held is None else held.reshape(())
        aligned = held.reshape((1,) * (len(shape) - held.ndim) + tuple(held.shape))
        return held.reshape(-1) if aligned.shape[1] == held.numel() else None


def _convolution(given: _Operands) -> MeanAndVariance | None:
    x, weight, bias = given.moments("input"), given.held("weight"), given.held("bias")
    if x is None or weight is None or given.op.arguments["transposed"]:
        return None
    groups = int(given.op.arguments["groups"])
    taps = weight.flatten(2)
    mean, var = (m.reshape(groups, 1, -1) for m in x)
    grouped = (groups, len(weight) // groups, -1)
    centre = (taps.sum(2).reshape(grouped) * mean).sum(2).flatten()
    spread = (taps.square().sum(2).reshape(grouped) * var).sum(2).flatten()
    return MeanAndVariance(centre if bias is None else centre + bias, spread)


def _batch_norm(given: _Operands) -> MeanAndVariance | None:
    """Return beta and gamma squared: the batch norm states the moments of what it writes."""
    gamma, beta = given.held("weight"), given.held("bias")
    return None if gamma is None or beta is None else MeanAndVariance(beta, gamma.square())


def _sum(given: _Operands) -> MeanAndVariance | None:
    a, b = given.moments("self"), given.moments("other")
    sign = -1.0 if "sub" in given.op.name else 1.0
    if a is not None and b is not None and len(a.mean) == len(b.mean):
        return MeanAndVariance(a.mean + sign * b.mean, a.var + b.var)
    shift = given.per_channel("other")
    return None if a is None or shift is None else MeanAndVariance(a.mean + sign * shift, a.var)


def _product(given: _Operands) -> MeanAndVariance | None:
    a, b = given.moments("self"), given.moments("other")
    if a is not None and b is not None and len(a.mean) == len(b.mean):
        power = (a.var + a.mean.square()) * (b.var + b.mean.square())
        return MeanAndVariance(a.mean * b.mean, power - (a.mean * b.mean).square())
    scale = given.per_channel("other")
    if a is None or scale is None:
        return None
    scale = 1 / scale if "div" in given.op.name else scale
    return MeanAndVariance(a.mean * scale, a.var * scale.square())


def _concatenation(given: _Operands) -> MeanAndVariance | None:
    parts = given.all("tensors")
    if given.op.arguments["dim"] != 1 or any(p is None for p in parts):
        return None
    return MeanAndVariance(torch.cat([p.mean for p in parts if p]), torch.cat([p.var for p in parts if p]))


def _kept(given: _Operands) -> MeanAndVariance | None:
    """Return the moments as they are: pooling and reshaping, of which neighbours are much alike."""
    return given.moments("self") or given.moments("input")


def _activation(kind: str, x: MeanAndVariance, op: Op) -> MeanAndVariance | None:
    options: dict[str, Any] = {
        name: value
        for name, value in op.arguments.items()
        if name in ("negative_slope", "min_val", "max_val", "alpha", "beta", "approximate")
    }
    try:
        return moments(plain_name(kind), x.mean, x.var.sqrt(), **options)
    except (InvalidInput, TypeError):
        return None


_RULES = {
    "convolution": _convolution, "native_batch_norm": _batch_norm, "add": _sum, "sub": _sum, "mul": _product,
    "div": _product, "cat": _concatenation, "max_pool2d_with_indices": _kept, "max_pool2d": _kept,
    "avg_pool2d": _kept, "_adaptive_avg_pool2d": _kept, "mean": _kept, "view": _kept, "_unsafe_view": _kept,
    "alias": _kept, "clone": _kept, "detach": _kept, "constant_pad_nd": _kept, "upsample_nearest2d": _kept,
    "upsample_bilinear2d": _kept,
}  # fmt: skip
