"""Find the channel groups of a trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slimilar.graph.coupling import Coupling
from slimilar.graph.groups import FIXED, ChannelGroup, Frozen, Grouping, Indices, Residual
from slimilar.graph.labels import Atoms, classes
from slimilar.graph.reasons import LAST_OF_LAYER, LAST_OF_SPLIT, RESIDUAL_STREAM, FreezeKind, Reason
from slimilar.graph.records import Freeze, NotRun, Trace


def find_groups(trace: Trace, residual: Residual) -> Grouping:
    """Return the channel groups of a trace."""
    label = trace.together
    drafts = _written_together(trace)
    reasons = _reasons(trace, residual)
    _keep_pieces(trace, drafts, reasons)
    whole = [bool((reasons.why[units] != FIXED).all()) for units in drafts]
    frozen = _frozen(trace, [u for u, stays in zip(drafts, whole, strict=True) if stays], reasons)
    chosen = [u for u, stays in zip(drafts, whole, strict=True) if not stays and len(u) > 1]
    unit_of, offsets, count = _number_units(label, chosen)
    coupling = Coupling(trace, unit_of, offsets, count)
    summed = np.zeros(int(label.max(initial=-1)) + 1, np.bool_)
    summed[trace.summed] = True
    groups = tuple(
        ChannelGroup(coupling, g, reasons.of(units), bool(summed[units].any()))
        for g, units in enumerate(chosen)
    )
    _tell_apart(groups)
    listed = {*(f.name for f in frozen), *(name for g in groups for name in g.producers)}
    others = (*_fixed_weights(trace, listed), *_not_run(trace))
    return Grouping(groups, (*frozen, *others), unit_of, tuple(offsets), count)


def _tell_apart(groups: Sequence[ChannelGroup]) -> None:
    """Name groups of one module by the weights that write them: plans know groups by their names."""
    modules = Counter(group.name for group in groups)
    for group in groups:
        if modules[group.name] > 1:
            group.name = group.filters[0].tensor


def _fixed_weights(trace: Trace, listed: set[str]) -> tuple[Frozen, ...]:
    """Return the layers that write channels by a weight that is computed, and could not be followed."""
    widths = {trace.ops[w.op].module: w.width for w in trace.fixed_writes}
    running = {op.module for op in trace.ops if any(trace.values[v].dynamic for v in op.outputs)}
    return tuple(
        Frozen(module, width, *_why_fixed(trace, module))
        for module, width in widths.items()
        if module not in listed and module in running
    )


def _why_fixed(trace: Trace, module: str) -> tuple[str, FreezeKind]:
    """Return why the weight of a module has no channels of its own: what froze its parameters first."""
    inside = f"{module}." if module else ""
    mine = [np.arange(a.first, a.first + a.size) for a in trace.axes if a.tensor.startswith(inside)]
    atoms = np.concatenate([np.empty(0, np.int64), *mine])
    found = [f.why for f in trace.freezes if np.isin(f.atoms, atoms).any()]
    if not found:
        return "its weight is computed from the input", FreezeKind.FIXED_SIZE
    return f"its weight is computed on the way ({found[0]})", found[0].kind


def _not_run(trace: Trace) -> tuple[Frozen, ...]:
    """Return the parts that did not run on the example; they stay as they are."""
    return tuple(Frozen(m.module, m.width, *_why_not_run(m)) for m in trace.not_run)


def _why_not_run(part: NotRun) -> tuple[str, FreezeKind]:
    if part.error is None:
        why = "does not run on the example (only under a flag, or by another method?), so it goes on reading every "
        hint = "channel: analyse with an input that runs it, or exclude the layers whose channels it reads"
        return why + hint, FreezeKind.NOT_RUN
    why = f"runs only in training and fails on the example ({part.error}), so it goes on reading every channel: "
    hint = "analyse with an example that it takes, or train the smaller network without it"
    return why + hint, FreezeKind.TRAINING_ONLY


def _written_together(trace: Trace) -> list[Atoms]:
    """Return the classes of every group: write vectors that share a class, in the order in which they show them."""
    label = trace.together
    vectors = [label[w.atoms[w.atoms >= 0]] for w in trace.writes]
    vectors = [v for v in vectors if len(v)]
    if not vectors:
        return []
    pairs = [np.stack([np.full(len(v), v[0]), v]) for v in vectors]
    together = classes(int(label.max()) + 1, pairs)
    found: dict[int, list[Atoms]] = {}
    for v in vectors:
        found.setdefault(int(together[v[0]]), []).append(v)
    first = np.empty(len(together), np.int64)
    return [_each_once(np.concatenate(parts), first) for parts in found.values()]


def _each_once(units: Atoms, first: Atoms) -> Atoms:
    """Return units without repetition, in the order in which they show; `first` is room for a number for each.

    >>> _each_once(np.array([4, 1, 4, 0]), np.empty(5, np.int64)).tolist()
    [4, 1, 0]
    """
    places = np.arange(len(units))
    first[units[::-1]] = places[::-1]  # of several the last counts, which is the first to show
    found: Atoms = units[first[units] == places]
    return found


@dataclass(eq=False)
class _Reasons:
    """Why classes have to stay: the number of a reason for every class, or `FIXED` for those that may leave."""

    known: list[Reason]
    why: Indices

    def of(self, units: Atoms) -> dict[int, str]:
        """Return which of some units have to stay, by their place, and why."""
        found = self.why[units]
        return {i: self.known[found[i]].text for i in np.flatnonzero(found >= 0).tolist()}

    def of_all(self, units: Atoms) -> list[Reason]:
        """Return why some units have to stay, each reason once, in the order in which they show."""
        return [self.known[number] for number in dict.fromkeys(self.why[units].tolist())]


def _reasons(trace: Trace, residual: Residual) -> _Reasons:
    """Collect the reasons; of several the first counts."""
    label = trace.together
    known = [*(_located(trace, f) for f in trace.freezes), RESIDUAL_STREAM]
    why = np.full(int(label.max(initial=-1)) + 1, FIXED)
    if residual != "joint":
        why[trace.summed] = len(known) - 1
    for number, freeze in reversed(list(enumerate(trace.freezes))):
        why[label[freeze.atoms]] = number
    return _Reasons(known, why)


def _located(trace: Trace, freeze: Freeze) -> Reason:
    """Return why channels are frozen; if a parametrisation of a weight is to blame, with its name."""
    module = trace.ops[freeze.op].module if freeze.op < len(trace.ops) else ""
    if "parametrizations" not in module.split("."):
        return freeze.why
    return Reason(freeze.kind, f"{freeze.reason} in the parametrisation {module}")


def _keep_pieces(trace: Trace, drafts: list[Atoms], reasons: _Reasons) -> None:
    """Keep one channel of every layer and of every part of a split that is only a part of its group.

    A group as a whole never becomes empty, but a layer whose output is padded and added to a wider one might.
    """
    label, why = trace.together, reasons.why
    home = np.full(len(why), FIXED)
    width = np.array([len(units) for units in drafts], np.int64)
    for g, units in enumerate(drafts):
        home[units] = g
    layers = (label[a.first : a.first + a.size] for a in trace.axes)
    pieces = (label[atoms] for atoms in trace.pieces)
    seen: set[bytes] = set()
    first = np.empty(len(why), np.int64)
    for parts, reason in ((pieces, LAST_OF_SPLIT), (layers, LAST_OF_LAYER)):
        reasons.known.append(reason)
        for part in parts:
            key = part.tobytes()
            if not key or key in seen:
                continue
            seen.add(key)
            at = home[part]
            if why[part].max() >= 0 or at.min() == FIXED:
                continue
            counts = np.bincount(home[_each_once(part, first)])
            if not (counts == width[: len(counts)]).any():
                why[part[0]] = len(reasons.known) - 1


def _frozen(trace: Trace, whole: list[Atoms], reasons: _Reasons) -> tuple[Frozen, ...]:
    """Return the groups that stay whole, each by the name of its first producer."""
    label = trace.together
    first = np.full(int(label.max(initial=-1)) + 1, len(trace.writes))
    for i, write in reversed(list(enumerate(trace.writes))):
        first[label[write.atoms[write.atoms >= 0]]] = i
    found = []
    for units in whole:
        producer = trace.ops[trace.writes[int(first[units].min())].op].module
        why = reasons.of_all(units)
        text = "; ".join(dict.fromkeys(reason.text for reason in why))
        found.append(Frozen(producer, len(units), text, why[0].kind))
    return tuple(found)


def _number_units(label: Atoms, groups: list[Atoms]) -> tuple[Atoms, list[int], int]:
    number = np.full(int(label.max()) + 1 if len(label) else 0, FIXED, np.int64)
    offsets, count = [], 0
    for units in groups:
        offsets.append(count)
        number[units] = np.arange(count, count + len(units))
        count += len(units)
    return (number[label] if len(label) else label), offsets, count
