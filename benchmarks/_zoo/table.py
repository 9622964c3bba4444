"""The table of the zoo, made from its rows."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from typing import Any

from _zoo.catalogue import EXPORT_EVERY, Architecture, chosen, without_norms

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


_MEMORY = 16  # GiB, if a row does not say another number
_HOW = "Random weights; FLOPs cut to 60 % where possible (residual: inner, else joint); judged by the weights alone."
_NOTES = (
    "With calibration: an example of one image, 8 random images of the smallest size that is taken (16 in rows that",
    "give no number), verified after reconstruction; kernels of networks with up to 2 million parameters are fitted",
    "as a whole, others channel by channel (form in the rows). Detectors of ultralytics are wrapped in RawPredictions.",
    "On one machine that had other work, in the order of size, each tool by itself (--tasks, --seconds, --memory). The",
    f"limit is of processor time, with building, checking and the training step; {_MEMORY} GiB of memory at most.",
)


def table(entries: list[Architecture], rows: Rows) -> str:
    """Return head, totals and one line for each architecture that was tried."""
    normed = {e.key for e in entries if e.batch_norms}
    main = {key: row for key, row in rows.items() if key[0] in normed}
    rest = {key: row for key, row in rows.items() if key[0] not in normed}
    ordered = [*chosen(entries, everything=True), *without_norms(entries)]
    return "\n".join(
        [
            *_head(entries),
            *_runs(entries, main, rest),
            _HOW,
            "",
            *_totals(main),
            *_without(rest),
            "",
            *_lines(ordered, rows),
        ]
    )


def _runs(entries: list[Architecture], main: Rows, rest: Rows) -> Iterator[str]:
    """Say of every task how many were tried, on which commit and with which limit."""
    apart = len(chosen(entries, everything=False))
    for title, task, rows, of in (
        ("Slimilar", "ours", main, sum(e.batch_norms > 0 for e in entries)),
        ("Slimilar with calibration", "calibrated", main, apart),
        ("Torch-Pruning", "rival", main, apart),
        ("Exports of Slimilar's", "exported", main, -(-apart // EXPORT_EVERY)),
        ("Slimilar without batch norm", "ours", rest, len(without_norms(entries))),
        ("The same with calibration", "calibrated", rest, len(without_norms(entries))),
    ):
        runs = Counter((r.get("commit", "?"), _limits(r)) for (_, t), r in rows.items() if t == task)
        parts = (f"{n} on commit {commit} with {limits}" for (commit, limits), n in runs.most_common())
        short = f"; {of - runs.total()} not tried" if of > runs.total() else ""
        longest = max((r["seconds"] for (_, t), r in rows.items() if t == task), default=0)
        yield f"  {title}: {', '.join(parts) or 'none'}{short}; the longest took {longest:.0f} s in all."


def _limits(row: Row) -> str:
    memory = row.get("memory", _MEMORY)
    return f"{row.get('limit', 0):g} s" + (f" and {memory} GiB" if memory != _MEMORY else "")


def _without(rows: Rows) -> Iterator[str]:
    for task, title in (
        ("ours", "Without batch norm"),
        ("calibrated", "Without batch norm, with calibration"),
    ):
        found = [r for (_, t), r in rows.items() if t == task]
        if found:
            counts = Counter(r["status"] for r in found).most_common()
            yield f"{title}: {len(found)} tried: {', '.join(f'{n} {status}' for status, n in counts)}."
    yield from _calibrated(rows)


def _head(entries: list[Architecture]) -> Iterator[str]:
    names = ("torch", "torchvision", "timm", "ultralytics", "torch-pruning")
    yield "python benchmarks/zoo.py --all --tasks ours; python benchmarks/zoo.py"
    yield f"{', '.join(f'{n} {version(n)}' for n in names)}; {platform.machine()}, one thread"
    yield (
        f"{len(entries)} architectures, {sum(e.batch_norms > 0 for e in entries)} with batch norms. Torch-Pruning: "
        f"{len(chosen(entries, everything=False))} of these, of timm's architectures made of the same modules in other "
        f"numbers and widths the smallest. {len(without_norms(entries))} without batch norms, chosen alike."
    )
    yield from _NOTES


def _totals(rows: Rows) -> Iterator[str]:
    for task, title in (
        ("ours", "Slimilar"),
        ("calibrated", "Slimilar with calibration"),
        ("rival", "Torch-Pruning 1.6.1"),
        ("exported", "exported and compiled"),
    ):
        found = [r for (_, t), r in rows.items() if t == task]
        if found:
            counts = Counter(r["status"] for r in found)
            listed = ", ".join(f"{n} {status}" for status, n in counts.most_common())
            yield f"{title}: {len(found)} tried: {listed}"
    yield from _calibrated(rows)
    yield from _side_by_side(rows)
    yield from _channels([r for (_, t), r in rows.items() if t == "ours" and "channels" in r])


def _calibrated(rows: Rows) -> Iterator[str]:
    """Say what was refused with images, and what was pruned without a fit, each with the reason that was given."""
    found = {m: r for (m, t), r in rows.items() if t == "calibrated"}
    for model, row in found.items():
        if row["status"] not in ("pass", "nothing to prune"):
            yield f"  {model} with calibration: {row['status']}: {row.get('what', '')[:200]}"
        elif row.get("method") == "none":
            yield f"  {model} with calibration: pruned without a fit, with a warning: {'; '.join(row['warned'])[:200]}"


def _side_by_side(rows: Rows) -> Iterator[str]:
    both = [(rows[m, "ours"], rows[m, "rival"]) for m, t in rows if t == "ours" and (m, "rival") in rows]
    good = [(a, b) for a, b in both if a["status"] == b["status"] == "pass"]
    if good:
        mine = sum(spent(a) for a, _ in good)
        theirs = sum(b["seconds_prune"] for _, b in good)
        ended = [(a, b) for a, b in both if "time-out" not in (a["status"], b["status"])]
        yield (
            f"Both came to an end: {len(ended)} of {len(both)}; passes {sum(a['status'] == 'pass' for a, _ in ended)} "
            f"against {sum(b['status'] == 'pass' for _, b in ended)}. Where both pass ({len(good)}): "
            f"{mine:.0f} s with verification against {theirs:.0f} s without."
        )
    other = [m for (m, t), r in rows.items() if t == "ours" and r.get("criterion")]
    far = [m for (m, t), r in rows.items() if t == "ours" and r.get("flops_left", 0) > 0.705]
    yield f"Passed by magnitudes, as no batch norm follows their channels: {', '.join(other) or 'none'}."
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


def _lines(ordered: list[Architecture], rows: Rows) -> Iterator[str]:
    yield (
        f"{'architecture':<48} {'status':<10} {'groups':>6} {'free':>6} {'least':>6} {'left':>6} {'mode':<5} "
        f"{'error':>8} {'s':>6}  {'calibrated':<16} {'Torch-Pruning':<20} {'s':>6}  "
        "frozen (joined to streams and outputs left out)"
    )
    for entry in ordered:
        if (row := rows.get((entry.key, "ours"))) is not None:
            others = rows.get((entry.key, "rival")), rows.get((entry.key, "calibrated"))
            yield _line(entry.key, row, *others)


def _line(name: str, row: Row, rival: Row | None, calibrated: Row | None) -> str:
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
        f"{spent(row):>6.1f}  {calibrated['status'] if calibrated else '-':<16} {other}  {frozen}"
    )
