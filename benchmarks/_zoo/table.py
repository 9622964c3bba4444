"""The table of the zoo, made from its rows."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from typing import Any

from _zoo.catalogue import Entry

Row = Mapping[str, Any]
Rows = Mapping[tuple[str, str], Row]

_KNOWN = ("mixes channels", "model output", "residual stream", "joins two axes")
_FIXED = (
    "a single channel is taken out", "meets constant padding", "reads channels that are fixed",
    "writes channels that are fixed", "combined with a tensor whose channels are fixed", "inside a group",
    "reads channels by a weight of fixed size", "writes one channel for each fixed group", "takes a fixed channel",
)  # fmt: skip


def kind(reason: str) -> str:
    """Return why channels stay: the arithmetic mixes them, they are coupled to fixed ones, or it is not understood."""
    parts = reason.split("; ")
    if "an axis of a kernel" in parts:
        return "kernel"
    if any(k in p for p in parts for k in _KNOWN):
        return "known"
    return "fixed" if any(k in p for p in parts for k in _FIXED) else "unknown"


def spent(row: Row) -> float:
    """Return our own seconds: to look at the network, to choose what leaves, to rewrite and verify."""
    return float(sum(row.get(f"seconds_{part}", 0) for part in ("analyze", "cut", "rewrite")))


# how the rows on file came about; a run from the start by the command above has none of these limits
_NOTES = (
    "Both tools on one busy machine, in the order of size: Slimilar on commit b9db81a with 120 s of processor time",
    "(--seconds 120), all but the last four of the list; Torch-Pruning earlier, with 30 s, stopped before the end. The",
    "limit covers building, checking and training too: Slimilar's time-outs are torchvision's vgg11_bn and vgg13_bn,",
    "where the check sorts the 100 million weights of the first linear layer.",
    "Of those without batch norm only a few were tried (60 s). The exports are of an earlier run.",
)


def table(entries: list[Entry], picked: list[Entry], rows: Rows) -> str:
    """Return head, totals and one line for each architecture."""
    normed = {e.key for e in picked if e.batch_norms}
    main = {key: row for key, row in rows.items() if key[0] in normed}
    rest = {key: row for key, row in rows.items() if key[0] not in normed}
    return "\n".join(
        [*_head(entries, picked), "", *_totals(main), *_without(rest), "", *_lines(picked, rows)]
    )


def _without(rows: Rows) -> Iterator[str]:
    if rows:
        counts = Counter(r["status"] for r in rows.values()).most_common()
        yield f"Without batch norm: {len(rows)} tried: {', '.join(f'{n} {status}' for status, n in counts)}."


def _head(entries: list[Entry], picked: list[Entry]) -> Iterator[str]:
    names = ("torch", "torchvision", "timm", "torch-pruning")
    with_norms = [e for e in entries if e.batch_norms]
    listed = [e for e in picked if e.batch_norms]
    yield "python benchmarks/zoo.py"
    yield f"{', '.join(f'{n} {version(n)}' for n in names)}; {platform.machine()}, one thread"
    yield (
        f"{len(entries)} architectures, {len(with_norms)} with batch norms, {len(listed)} of them listed: of timm's "
        "architectures made of the same modules in other numbers and widths, the smallest. "
        f"{len(picked) - len(listed)} without batch norms, chosen alike."
    )
    yield from _NOTES
    yield "Random weights; FLOPs cut to 60 % where possible (residual: inner, else joint); judged by the weights alone."


def _totals(rows: Rows) -> Iterator[str]:
    for task, title in (
        ("ours", "Slimilar"),
        ("rival", "Torch-Pruning 1.6.1"),
        ("exported", "exported and compiled"),
    ):
        found = [r for (_, t), r in rows.items() if t == task]
        if found:
            counts = Counter(r["status"] for r in found)
            listed = ", ".join(f"{n} {status}" for status, n in counts.most_common())
            yield f"{title}: {len(found)} tried: {listed}"
    yield from _side_by_side(rows)
    yield from _channels([r for (_, t), r in rows.items() if t == "ours" and "channels" in r])


def _side_by_side(rows: Rows) -> Iterator[str]:
    both = [(rows[m, "ours"], rows[m, "rival"]) for m, t in rows if t == "ours" and (m, "rival") in rows]
    good = [(a, b) for a, b in both if a["status"] == b["status"] == "pass"]
    if good:
        mine = sum(spent(a) for a, _ in good)
        theirs = sum(b["seconds_prune"] for _, b in good)
        ended = [(a, b) for a, b in both if "time-out" not in (a["status"], b["status"])]
        yield (
            f"Both came to an end: {len(ended)} of {len(both)}; passes {sum(a['status'] == 'pass' for a, _ in ended)} "
            f"against {sum(b['status'] == 'pass' for _, b in ended)}. Where both pass ({len(good)}): {mine:.0f} s with "
            f"verification against {theirs:.0f} s without."
        )
    other = [m for (m, t), r in rows.items() if t == "ours" and r.get("criterion")]
    far = [m for (m, t), r in rows.items() if t == "ours" and r.get("flops_left", 0) > 0.705]
    yield f"Passed by magnitudes, as no batch norm speaks for their channels: {', '.join(other) or 'none'}."
    yield f"Passed, but less than 30 % of the FLOPs could be cut: {', '.join(far) or 'none'}."


def _channels(found: list[Row]) -> Iterator[str]:
    total, reasons = sum(r["channels"] for r in found), Counter[str]()
    kinds: Counter[str] = Counter()
    for row in found:
        for reason, width in row["frozen"].items():
            reasons[reason] += width
            kinds[kind(reason)] += width
    if total:
        yield (
            f"Channels: {total:,}; frozen as not understood {(kinds['unknown'] + kinds['kernel']) / total:.2%} "
            f"({kinds['kernel'] / total:.2%} are entries of kernels that are computed on the way, as in CondConv, and "
            f"{kinds['unknown'] / total:.2%} all the rest), coupled to fixed ones "
            f"{kinds['fixed'] / total:.2%}, by arithmetic, outputs and streams {kinds['known'] / total:.2%}."
        )
        for reason, width in reasons.most_common(12):
            yield f"  {width / total:7.2%}  {reason}"


def _lines(picked: list[Entry], rows: Rows) -> Iterator[str]:
    yield (
        f"{'architecture':<48} {'status':<10} {'groups':>6} {'free':>6} {'least':>6} {'left':>6} {'mode':<5} "
        f"{'error':>8} {'s':>6}  {'Torch-Pruning':<20} {'s':>6}  frozen (joined to streams and outputs left out)"
    )
    for entry in picked:
        if (row := rows.get((entry.key, "ours"))) is not None:
            yield _line(entry.key, row, rows.get((entry.key, "rival")))


def _line(name: str, row: Row, rival: Row | None) -> str:
    if "channels" not in row:
        mine = f"{row['status']:<10} {row.get('what', '')[:90]}"
        return f"{name:<48} {mine}"
    least = min(row["smallest_inner"], row.get("smallest_joint", 1))
    other = f"{rival['status']:<20} {rival.get('seconds_prune', 0):6.1f}" if rival else f"{'-':<20} {'-':>6}"
    frozen = "; ".join(
        f"{w} {r}" for r, w in row["frozen"].items() if r != "model output" and "stream" not in r
    )
    return (
        f"{name:<48} {row['status']:<10} {row['groups']:>6} {row.get('free', 0) / row['channels']:>6.0%} {least:>6.0%} "
        f"{row.get('flops_left', 1):>6.0%} {row.get('residual', '-'):<5} {row.get('oracle', 0):>8.0e} "
        f"{spent(row):>6.1f}  {other}  {frozen}"
    )
