"""Normalisation: of every channel by itself, of groups, of all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor, nn

from slimilar.graph.labels import NONE, Labels, axes_of, on_axis
from slimilar.graph.reasons import fixed_size, mixes
from slimilar.graph.records import Integer, Norm, Write
from slimilar.graph.rules.table import Call, along_axis, rule, touching

if TYPE_CHECKING:
    from slimilar.graph.tracer import Tracer


@rule(
    "native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_no_training", "batch_norm",
    "cudnn_batch_norm", "_batch_norm_with_update", "_batch_norm_no_update", "miopen_batch_norm",
)  # fmt: skip
def batch_norm(t: Tracer, call: Call) -> list[Labels]:
    """Pass labels through a batch norm and note it: its gamma and beta are the moments of the channels."""
    held = [call.get(n) for n in ("weight", "bias", "running_mean", "running_var")]
    own = _own(t, held)
    vector, rest = along_axis(t.labels(call.x), 1, call.x.ndim)
    by_batch = [] if call.get("training", False) else [f for f in rest if axes_of(f) == (0,)]
    t.freeze(tuple(f for f in rest if all(f is not b for b in by_batch)), mixes(call.name))
    selects = call.module in t.choices.select and bool(own)
    if selects:
        vector = own[0]
        t.writes.append(Write(len(t.ops), 1, vector.numpy()))
    _join(t, vector, own)
    if vector is None:
        return [tuple(by_batch), *[NONE] * (len(call.outs) - 1)]
    names = [None if p is None else t.values[t.index(p)].name for p in held]
    eps = float(call.get("eps", call.get("epsilon", 1e-5)))
    tensors = (names[0], names[1], names[2], names[3])
    t.norms.append(Norm(len(t.ops), call.module, vector.numpy(), tensors, eps, selects))
    kept = (on_axis(vector, 1, call.x.ndim), *by_batch) if selects or rest else t.labels(call.x)
    return [kept, *[NONE] * (len(call.outs) - 1)]


_HELD = ("weight", "bias", "running_mean", "running_var")


def is_frozen_norm(module: nn.Module) -> bool:
    """Tell whether a module is a batch norm that was made a fixed scale and shift, as detectors do: buffers only."""
    held = module._buffers
    return (
        "weight" in held and all(n in held for n in _HELD) and not module._parameters and not module._modules
    )


def note_frozen_norm(t: Tracer, path: str, module: nn.Module, result: Tensor) -> None:
    """Note such a batch norm: its weight and bias are the moments of its channels, too."""
    vector, _ = along_axis(t.labels(result), 1, result.ndim)
    if vector is not None and t.ops:
        names = [f"{path}.{n}" for n in _HELD]
        tensors = (names[0], names[1], names[2], names[3])
        eps = float(getattr(module, "eps", 1e-5))
        t.norms.append(Norm(len(t.ops) - 1, path, vector.numpy(), tensors, eps, False))


def _own(t: Tracer, held: Sequence[Tensor | None]) -> list[Tensor]:
    found = [along_axis(labels, 0, 1)[0] for p in held if p is not None and (labels := t.labels(p))]
    return [v for v in found if v is not None]


def _join(t: Tracer, vector: Tensor | None, own: Sequence[Tensor]) -> None:
    """Tie the entries of weight, bias, ... to the channels they are for."""
    for mine in own:
        if vector is None:
            t.freeze((mine,), fixed_size("normalises channels that are fixed"))
        else:
            t.tie(vector, mine)


@rule("native_group_norm")
def group_norm(t: Tracer, call: Call) -> list[Labels]:
    """Bind the channels of each group: a whole group may leave."""
    x, groups = call.x, call["group"]
    vector, rest = along_axis(t.labels(x), 1, x.ndim)
    t.freeze(tuple(rest), mixes(call.name))
    _join(t, vector, _own(t, [call["weight"], call["bias"]]))
    if vector is None:
        return [NONE] * len(call.outs)
    if groups == 1 or t.level(call.signature) > 0:
        t.freeze((vector,), mixes(call.name))
    blocks = vector.view(groups, -1)
    t.bind(blocks, blocks[:, :1])
    if getattr(t.modules[call.module], "num_groups", None) == groups:
        t.hold(Integer(call.module, "num_groups", None, blocks[:, 0].numpy()))
    return [(on_axis(vector, 1, x.ndim),), *[NONE] * (len(call.outs) - 1)]


@rule("native_layer_norm", "rms_norm", "_fused_rms_norm")
def layer_norm(t: Tracer, call: Call) -> list[Labels]:
    """Freeze normalised channels: the others would change with each that leaves."""
    x, over = call.x, len(call["normalized_shape"])
    mixed, rest = touching(t.labels(x), range(x.ndim - over, x.ndim), x.ndim)
    t.freeze(tuple(mixed), mixes(call.name))
    for p in call.ins[1:]:
        t.freeze(t.labels(p), mixes(call.name))
    return [(*rest, *mixed), *[NONE] * (len(call.outs) - 1)]
