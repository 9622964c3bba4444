"""Normalisation: of every channel by itself, of groups, of all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor, nn

from slimilar.graph.labels import NONE, Labels, axes_of, on_axis
from slimilar.graph.reasons import fixed_size, mixes
from slimilar.graph.records import Integer, Norm, WeightNorm, Write
from slimilar.graph.rules.table import Call, Context, along_axis, along_channels, rule, touching

if TYPE_CHECKING:
    from slimilar.graph.policy import LabelPolicy


@rule(
    "native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_no_training", "batch_norm",
    "cudnn_batch_norm", "_batch_norm_with_update", "_batch_norm_no_update", "miopen_batch_norm",
)  # fmt: skip
def batch_norm(policy: LabelPolicy, call: Call) -> list[Labels]:
    """Pass labels through a batch norm and note it: its gamma and beta are the moments of the channels."""
    held = [call.get(n) for n in ("weight", "bias", "running_mean", "running_var")]
    own = _own(call, held)
    vector, rest = along_channels(policy, call.labels(call.x), call.x.ndim)
    by_batch = [] if call.get("training", False) else [f for f in rest if axes_of(f) == (0,)]
    policy.freeze(tuple(f for f in rest if all(f is not b for b in by_batch)), mixes(call.name))
    selects = call.selects and bool(own)
    if selects:
        vector = own[0]
        policy.note(Write(call.op, 1, vector.numpy()))
    _join(policy, vector, own)
    if vector is None:
        return [tuple(by_batch), *[NONE] * (len(call.outs) - 1)]
    names = [None if p is None else call.value(p).name for p in held]
    eps = float(call.get("eps", call.get("epsilon", 1e-5)))
    tensors = (names[0], names[1], names[2], names[3])
    policy.note(Norm(call.op, call.module, vector.numpy(), tensors, eps, selects))
    kept = (on_axis(vector, 1, call.x.ndim), *by_batch)
    return [kept, *[NONE] * (len(call.outs) - 1)]


_HELD = ("weight", "bias", "running_mean", "running_var")


def is_frozen_norm(module: nn.Module) -> bool:
    """Tell whether a module is a batch norm that was made a fixed scale and shift, as detectors do: buffers only."""
    held = module._buffers
    return (
        "weight" in held and all(n in held for n in _HELD) and not module._parameters and not module._modules
    )


def note_frozen_norm(policy: LabelPolicy, context: Context, op: int, path: str, result: Tensor) -> None:
    """Note such a batch norm, whose last operator is `op`: its weight and bias are the moments of its channels."""
    vector, _ = along_axis(context.values.labels(result), 1, result.ndim)
    if vector is not None:
        names = [f"{path}.{n}" for n in _HELD]
        tensors = (names[0], names[1], names[2], names[3])
        eps = float(getattr(context.modules[path], "eps", 1e-5))
        policy.note(Norm(op, path, vector.numpy(), tensors, eps, False))


def _own(call: Call, held: Sequence[Tensor | None]) -> list[Tensor]:
    found = [along_axis(labels, 0, 1)[0] for p in held if p is not None and (labels := call.labels(p))]
    return [v for v in found if v is not None]


def _join(policy: LabelPolicy, vector: Tensor | None, own: Sequence[Tensor]) -> None:
    """Tie the entries of weight, bias, ... to the channels they are for."""
    for mine in own:
        if vector is None:
            policy.freeze((mine,), fixed_size("normalises channels that are fixed"))
        else:
            policy.tie(vector, mine)


@rule("native_group_norm")
def group_norm(policy: LabelPolicy, call: Call) -> list[Labels]:
    """Bind the channels of each group: a whole group may leave."""
    x, groups = call.x, call["group"]
    vector, rest = along_channels(policy, call.labels(x), x.ndim)
    policy.freeze(tuple(rest), mixes(call.name))
    _join(policy, vector, _own(call, [call["weight"], call["bias"]]))
    if vector is None:
        return [NONE] * len(call.outs)
    if groups == 1 or call.level > 0:
        policy.freeze((vector,), mixes(call.name))
    blocks = vector.view(groups, -1)
    policy.bind(blocks, blocks[:, :1])
    if getattr(call.modules[call.module], "num_groups", None) == groups:
        policy.note(Integer(call.module, "num_groups", None, blocks[:, 0].numpy()))
    return [(on_axis(vector, 1, x.ndim),), *[NONE] * (len(call.outs) - 1)]


@rule("_weight_norm", "_weight_norm_interface")
def weight_norm(policy: LabelPolicy, call: Call) -> list[Labels]:
    """Tie magnitude and direction; what other axes lose can be made up for exactly (see `WeightNorm`)."""
    direction, magnitude, axis = call["v"], call["g"], call.get("dim", 0)
    names = [call.value(x).name for x in (magnitude, direction)]
    along, _ = along_axis(call.labels(direction), axis, direction.ndim)
    scale, _ = along_axis(call.labels(magnitude), axis, magnitude.ndim)
    if names[0] is None or names[1] is None or along is None or scale is None:
        for x in (direction, magnitude):
            policy.freeze(call.labels(x), mixes(call.name))
        return [NONE] * len(call.outs)
    policy.tie(along, scale)
    policy.note(WeightNorm(names[0], names[1], axis % direction.ndim))
    return [call.labels(direction), *[NONE] * (len(call.outs) - 1)]


@rule("native_layer_norm", "rms_norm", "_fused_rms_norm")
def layer_norm(policy: LabelPolicy, call: Call) -> list[Labels]:
    """Freeze normalised channels: the others would change with each that leaves."""
    x, over = call.x, len(call["normalized_shape"])
    mixed, rest = touching(call.labels(x), range(x.ndim - over, x.ndim), x.ndim)
    policy.freeze(tuple(mixed), mixes(call.name))
    for p in call.ins[1:]:
        policy.freeze(call.labels(p), mixes(call.name))
    return [(*rest, *mixed), *[NONE] * (len(call.outs) - 1)]
