"""Convolutions and matrix products: who reads channels, and who writes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from slimilar.graph.labels import NONE, Labels, align, axes_of, on_axis
from slimilar.graph.reasons import fixed_size, mixes, unknown
from slimilar.graph.records import FixedWrite, Integer, Read, Reduction, Write
from slimilar.graph.rules.elementwise import combine
from slimilar.graph.rules.state import hold_projected, hold_state, with_state
from slimilar.graph.rules.table import Call, along_axis, along_channels, rule
from slimilar.utils.spectral_norms import is_spectral

if TYPE_CHECKING:
    from slimilar.graph.policy import LabelPolicy


def write(policy: LabelPolicy, call: Call, atoms: Tensor, axis: int = 1) -> Tensor:
    """Note that the running operator creates channels."""
    policy.note(Write(call.op, axis, atoms.numpy()))
    return atoms


def read(
    policy: LabelPolicy, call: Call, x: Tensor, axis: int, vector: Tensor | None, weight: Tensor | None
) -> None:
    """Note that `vector` is summed over with `weight`; whichever is missing is fixed, unless zeros are read."""
    if weight is not None:
        vector = with_state(policy, call, x, axis, vector, weight)
    if vector is not None and weight is not None:
        policy.tie(vector, weight)
        hold_projected(policy, call, weight)
        policy.note(Read(call.op, call.index(x), axis % x.ndim, vector.numpy(), weight.numpy()))
    elif vector is not None:
        policy.freeze((vector,), fixed_size(f"operator {call.name} reads channels by a weight of fixed size"))
    elif weight is not None and (zeros_of := call.value(x).zeros_of) is not None:
        hold_state(policy, call, zeros_of, weight)
    elif weight is not None:
        policy.freeze((weight,), fixed_size("reads channels that are fixed"))


# --- convolutions ---------------------------------------------------------------------------------------------


@rule("convolution", "conv1d", "conv2d", "conv3d", "_convolution", "cudnn_convolution", "mkldnn_convolution")
def convolution(policy: LabelPolicy, call: Call) -> list[Labels]:
    """Read the input's channels, write the output's; groups tie them."""
    x, weight, bias = call["input"], call["weight"], call.get("bias")
    vector, rest = along_channels(policy, call.labels(x), x.ndim)
    batch = [f for f in rest if axes_of(f) == (0,)]
    policy.freeze(tuple(f for f in rest if axes_of(f) != (0,)), mixes(call.name))
    first, others = along_axis(call.labels(weight), 0, weight.ndim)
    second, others = along_axis(tuple(others), 1, weight.ndim)
    policy.freeze(tuple(others), fixed_size("an axis of a kernel"))
    join = _transposed if call.get("transposed") else _forward
    out = join(policy, call, vector, first, second)
    if out is None and call.outs[0].shape[1] > 1:
        policy.note(FixedWrite(call.op, call.outs[0].shape[1]))
    _add_bias(policy, call, out, bias)
    return [tuple(batch) if out is None else (on_axis(out, 1, call.outs[0].ndim), *batch)]


def _add_bias(policy: LabelPolicy, call: Call, out: Tensor | None, bias: Tensor | None) -> None:
    mine = None if bias is None else along_axis(call.labels(bias), 0, 1)[0]
    if out is None:
        policy.freeze(call.labels(bias), fixed_size("writes channels that are fixed"))
    elif mine is not None:
        policy.tie(out, mine)
    elif bias is not None:
        policy.freeze((out,), fixed_size("combined with a tensor whose channels are fixed"))


def _hold_groups(policy: LabelPolicy, call: Call, per_group: Tensor) -> None:
    """Let the module's number of groups shrink with the groups."""
    if getattr(call.modules[call.module], "groups", None) == call["groups"]:
        policy.note(Integer(call.module, "groups", None, per_group.numpy()))


def _whole_groups(policy: LabelPolicy, call: Call) -> bool:
    """Decide how a grouped convolution shrinks: by whole groups, or within every group alike."""
    groups, channels = policy.original_groups(call)
    if groups == channels:
        return True
    prefer_whole = groups * groups >= channels
    return prefer_whole if call.level == 0 else not prefer_whole


def _forward(
    policy: LabelPolicy, call: Call, x: Tensor | None, w_out: Tensor | None, w_in: Tensor | None
) -> Tensor | None:
    if call["groups"] == 1:
        read(policy, call, call["input"], 1, x, w_in)
        return None if w_out is None else write(policy, call, w_out)
    if x is not None and _whole_groups(policy, call):
        return _by_groups(policy, call, x, w_out, w_in)
    return _inside_groups(policy, call, x, w_out, w_in)


def _by_groups(
    policy: LabelPolicy, call: Call, x: Tensor, w_out: Tensor | None, w_in: Tensor | None
) -> Tensor:
    """Let whole groups leave: their inputs, their outputs."""
    groups = call["groups"]
    blocks = x.view(groups, -1)
    policy.bind(blocks, blocks[:, :1])
    spread = blocks[:, 0].repeat_interleave(call.outs[0].shape[1] // groups)
    if w_in is not None:
        policy.freeze((w_in,), fixed_size("inside a group"))
    _hold_groups(policy, call, blocks[:, 0])
    if w_out is None:
        return spread
    policy.tie(w_out, spread)
    return write(policy, call, w_out)


def _inside_groups(
    policy: LabelPolicy, call: Call, x: Tensor | None, w_out: Tensor | None, w_in: Tensor | None
) -> Tensor | None:
    """Let every group lose the same of its inputs, and of its outputs."""
    groups = call["groups"]
    if x is not None:
        columns = x.view(groups, -1)
        policy.bind(columns, columns[:1])
        read(policy, call, call["input"], 1, x, None if w_in is None else w_in.repeat(groups))
    elif w_in is not None:
        policy.freeze((w_in,), fixed_size("reads channels that are fixed"))
    if w_out is None:
        return None
    if w_out.numel() == groups:
        policy.freeze((w_out,), fixed_size("writes one channel for each fixed group"))
    columns = w_out.view(groups, -1)
    policy.bind(columns, columns[:1])
    return write(policy, call, w_out)


def _transposed(
    policy: LabelPolicy, call: Call, x: Tensor | None, w_in: Tensor | None, w_out: Tensor | None
) -> Tensor | None:
    groups = call["groups"]
    if groups > 1 and x is not None and _whole_groups(policy, call):
        blocks = x.view(groups, -1)
        policy.bind(blocks, blocks[:, :1])
        if w_in is not None:
            policy.tie(x, w_in)
        if w_out is not None:
            policy.freeze((w_out,), fixed_size("inside a group"))
        _hold_groups(policy, call, blocks[:, 0])
        return blocks[:, 0].repeat_interleave(call.outs[0].shape[1] // groups)
    if x is not None and groups > 1:
        columns = x.view(groups, -1)
        policy.bind(columns, columns[:1])
    read(policy, call, call["input"], 1, x, w_in)
    return None if w_out is None else write(policy, call, w_out.repeat(groups))


# --- matrix products ------------------------------------------------------------------------------------------


@rule("mm", "bmm", "matmul", "linear", "addmm", "baddbmm", "mv", "addmv", "dot", "vdot")
def contraction(policy: LabelPolicy, call: Call) -> list[Labels]:
    """Multiply matrices: read the inner axis, pass on the outer ones."""
    short = call.name.removeprefix("aten.").rstrip("_")
    bias = (
        call.get("bias") if short == "linear" else call["self"] if short.startswith(("add", "badd")) else None
    )
    a, b = [x for x in call.ins if x is not bias][:2]
    if b.ndim == 1 and bias is None and is_spectral(call.modules[call.module]):
        return [_spectral(policy, call, a, b)]
    if b.ndim < 2 or a.ndim < 2 or (a.ndim > 2 and b.ndim > 2 and a.ndim != b.ndim):
        for x in call.ins:
            policy.freeze(call.labels(x), unknown(call.name))
        return [NONE]
    return [_product(policy, call, a, b, bias, b.ndim - 1 if short == "linear" else b.ndim - 2)]


def _spectral(policy: LabelPolicy, call: Call, a: Tensor, vector: Tensor) -> Labels:
    """Multiply a weight or a vector with one that a spectral norm holds: both lose the same entries."""
    mine, rest = along_axis(call.labels(a), a.ndim - 1, a.ndim)
    theirs, _ = along_axis(call.labels(vector), 0, 1)
    if mine is not None and theirs is not None:
        policy.tie(mine, theirs)
    else:
        policy.freeze((*call.labels(a), *call.labels(vector)), mixes(call.name))
    return tuple(f.reshape(-1) for f in rest)


def _product(
    policy: LabelPolicy, call: Call, a: Tensor, b: Tensor, bias: Tensor | None, k_axis: int
) -> Labels:
    """Return the labels of `a @ b + bias`, where `b` is summed over along `k_axis`."""
    out, last = call.outs[0].ndim, a.ndim - 1
    n_axis = 2 * b.ndim - 3 - k_axis
    a_k, a_rest = along_axis(call.labels(a), last, a.ndim)
    b_k, b_rest = along_axis(call.labels(b), k_axis, b.ndim)
    b_n, b_rest = along_axis(tuple(b_rest), n_axis, b.ndim)
    mixed = [f for f in a_rest if last in axes_of(f)] + [
        f for f in b_rest if {k_axis, n_axis} & set(axes_of(f))
    ]
    policy.freeze(tuple(mixed), mixes(call.name))
    _contract(policy, call, a, b, a_k, b_k, k_axis)
    parts: list[tuple[list[Tensor], Sequence[int]]] = [
        ([f for f in a_rest if last not in axes_of(f)], [*a.shape[:-1], 1]),
        ([f for f in b_rest if not {k_axis, n_axis} & set(axes_of(f))], [*b.shape[:-2], 1, 1]),
    ]
    if b_n is not None:
        if not call.value(b).dynamic:
            write(policy, call, b_n, out - 1)
        parts.append(([on_axis(b_n, out - 1, out)], [1] * (out - 1) + [b_n.numel()]))
    elif not call.value(b).dynamic and b.shape[n_axis] > 1:
        policy.note(FixedWrite(call.op, b.shape[n_axis]))
    if bias is not None:
        parts.append((list(call.labels(bias)), bias.shape))
    labels = [tuple(align(f, out) for f in found) for found, _ in parts]
    return combine(policy, labels, [[1] * (out - len(size)) + list(size) for _, size in parts], sums=False)


def _contract(
    policy: LabelPolicy, call: Call, a: Tensor, b: Tensor, a_k: Tensor | None, b_k: Tensor | None, k_axis: int
) -> None:
    if not call.value(b).dynamic:
        read(policy, call, a, a.ndim - 1, a_k, b_k)
    elif not call.value(a).dynamic:
        read(policy, call, b, k_axis, b_k, a_k)
    else:
        _multiply(policy, call, a, a_k, b_k)


def _multiply(policy: LabelPolicy, call: Call, a: Tensor, a_k: Tensor | None, b_k: Tensor | None) -> None:
    """Sum over the channels of two activations, such as queries and keys: they leave in pairs."""
    if a_k is None or b_k is None:
        policy.freeze(tuple(v for v in (a_k, b_k) if v is not None), mixes(call.name))
        return
    policy.tie(a_k, b_k)
    policy.note(Reduction(call.op, call.index(a), a.ndim - 1, a_k.numpy()))
