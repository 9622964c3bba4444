"""`slimilar inspect`: what a saved file holds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slimilar.cli.output import Output, escape, less
from slimilar.deploy.model_names import check_saved_file

if TYPE_CHECKING:
    from slimilar.deploy.file_format import Stored


def inspect(
    file: Annotated[
        Path, typer.Argument(help="A file written by `slimilar prune` or `slimilar.save`, or an ONNX file.")
    ],
    out: Output,
) -> None:
    """Show the contents of a saved file, and check that it is complete and unmodified.

    Example: [bold]slimilar inspect small/model.safetensors[/]
    """
    if file.suffix == ".onnx":
        described = _described_onnx(file)
        out.table(["<", "<"], [[escape(name), escape(text)] for name, text in _facts(described)])
        out.answer(described)
        return
    check_saved_file(file)
    from slimilar.deploy.file_format import inspect as look
    from slimilar.deploy.file_format import read

    stored = look(file)
    read(stored)
    _show(out, stored)
    out.answer(_described(stored))


def _described_onnx(file: Path) -> dict[str, Any]:
    from slimilar.deploy.onnx_files.opening import open_file
    from slimilar.deploy.onnx_files.summary import summary

    return {"file": str(file), "bytes": file.expanduser().stat().st_size, **summary(open_file(file))}


def _facts(described: dict[str, Any]) -> list[tuple[str, str]]:
    """Return what is said about an ONNX file, as lines of a table."""
    lines = [(name, _shown(value)) for name, value in described.items() if name != "operators"]
    counts = described["operators"]
    unread = [kind for kind, entry in counts.items() if not entry["known"]]
    lines.append(("operators", ", ".join(f"{kind} {entry['count']}" for kind, entry in counts.items())))
    lines.append(("cannot be read", ", ".join(unread) or "nothing"))
    return lines


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_shown(x)}" for name, x in value.items()) or "none"
    return "x".join("?" if n is None else str(n) for n in value) if isinstance(value, list) else str(value)


def _described(stored: Stored) -> dict[str, Any]:
    described = {name: value for name, value in stored.info.items() if name not in ("surgery", "tied")}
    return {
        "file": str(stored.path),
        "bytes": stored.path.stat().st_size,
        **described,
        "tensors": [
            {"name": name, "shape": list(shape), "dtype": stored.dtypes[name]}
            for name, shape in stored.shapes.items()
        ],
        "smaller axes": len(stored.surgery.indices),
        "selections": sorted(stored.surgery.selections),
        "added biases": sorted(stored.surgery.biases),
        "tied": dict(stored.tied),
    }


def _reconstruction(info: Mapping[str, Any]) -> str:
    """Return how consumers were reconstructed; files of earlier versions do not say to how many images."""
    from slimilar.reconstruction.methods import OPTIONS, in_words

    method = str(info.get("reconstruction", info.get("substitute")))
    images = info.get("fitted images") or 0
    known = method in OPTIONS and "reconstruction" in info and (images or method != "least-squares")
    return in_words(method, images) if known else method


def _show(out: Output, stored: Stored) -> None:
    from slimilar.planning.cost import human

    info = stored.info
    size = stored.path.stat().st_size
    facts = [["file", f"{stored.path}, {human(size)}B, complete and unmodified"]]
    facts += [["made from", stored.source or f"a {info.get('class', 'model')}; pass one to load it"]]
    made = info.get("made by") or {}
    facts += [["made by", ", ".join(f"{name} {version}" for name, version in made.items())]]
    if info.get("threshold") is not None:
        chosen = f"criterion {info.get('criterion')}, threshold {info['threshold']:.4g}"
        facts += [["pruned with", f"{chosen}, reconstruction {_reconstruction(info)}"]]
    for name, before, after in _costs(info):
        facts += [[name, f"{human(before)} -> {human(after)} ({less(before, after)})"]]
    facts += [
        ["tensors", f"{len(stored.shapes)}, of which {_smaller(stored)} are smaller than in the original"]
    ]
    facts += [["input", " and ".join("x".join(map(str, s)) for s in info.get("input") or []) or "unknown"]]
    out.table(["<", "<"], [[escape(name), escape(text)] for name, text in facts])
    widths = [
        [escape(name), str(pair[0]), str(pair[1])]
        for name, pair in (info.get("widths") or {}).items()
        if isinstance(pair, list) and len(pair) == 2
    ]
    if widths:
        out.table(["<layer", "channels", "kept"], widths)


def _smaller(stored: Stored) -> int:
    return len({name for name, _ in stored.surgery.indices})


def _costs(info: Any) -> list[tuple[str, int, int]]:
    """Return the costs that a file holds, as far as they are valid."""
    before, after = (dict((info.get("cost") or {}).get(when) or {}) for when in ("before", "after"))
    names = {"flops": "FLOPs", "macs": "MACs", "params": "parameters"}
    return [
        (names[k], before[k], after[k])
        for k in names
        if isinstance(before.get(k), int) and isinstance(after.get(k), int)
    ]
