"""Try one architecture after the other, as told on standard input; answer each with one line of JSON.

A process of its own, so that a crash or an endless loop costs one row and not the run.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import nn

from _zoo import oracle
from _zoo.calibrated import prune_calibrated
from _zoo.catalogue import Architecture, build
from _zoo.rival import rival
from _zoo.target import to_target
from slimilar import analyze, count
from slimilar.errors import SlimilarError
from slimilar.models.detectors import RawPredictions, is_detector
from slimilar.pipeline import apply
from slimilar.planning.plan import Plan
from slimilar.utils.pytree import arguments, tensors_in

ENOUGH = 0.7
_LARGE = 256  # pixels; a fixed size beyond is not small input
_SMALLER = (112, 128, 224)
_SMALLEST = (64, 96)
_FRAMES = (8, 16)  # of a video to try, the few first


def prepared(entry: Architecture, smallest: bool = False) -> tuple[nn.Module, Any]:
    """Return a model with random weights, made for the smallest images if asked, and the smallest input it takes."""
    problem: Exception | None = None
    for made_for, sizes in _makes(entry, smallest):
        try:
            model = oracle.randomise(build(entry.library, entry.name, entry.kind, made_for))
            return model, _taken(entry, model, sizes)
        except Exception as error:
            problem = error
    assert problem is not None
    raise problem


def _makes(entry: Architecture, smallest: bool) -> Iterator[tuple[int | None, tuple[int, ...]]]:
    """Yield ways to build a model: what is made for large images alone can often be made for smaller ones."""
    if smallest and entry.library == "timm" and len(entry.sizes) == 1:
        yield from ((size, (size,)) for size in (*_SMALLEST, *_SMALLER) if size < entry.sizes[0])
    elif entry.library == "timm" and entry.sizes[0] > _LARGE:
        yield from ((size, (size,)) for size in _SMALLER)
    yield None, entry.sizes


def _taken(entry: Architecture, model: nn.Module, sizes: tuple[int, ...]) -> Any:
    """Return the smallest input that a model takes, or raise with what it raised last."""
    # heads that run in training only need larger images than the rest
    sizes = (299,) if getattr(model, "aux_logits", False) else sizes
    problem: Exception | None = None
    for size, frames in product(sizes, _FRAMES if entry.kind == "video" else (0,)):
        example = _example(entry, size, frames)
        args, kwargs = arguments(example)
        try:
            with torch.no_grad():
                model(*args, **kwargs)
            return example
        except Exception as error:
            problem = error
    raise RuntimeError(f"no input size of {sizes} is taken: {problem}") from problem


def _example(entry: Architecture, size: int, frames: int) -> Any:
    image = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(1))
    if frames:
        return image[:1].unsqueeze(2).repeat(1, 1, frames, 1, 1)
    return (image[:1], image[1:]) if entry.kind == "optical_flow" else image


def ours(entry: Architecture) -> dict[str, Any]:
    """Trace, prune, verify, train one step."""
    model, example = prepared(entry)
    row: dict[str, Any] = {"size": _size(example)}
    began = time.process_time()
    mode, chosen = "inner", analyze(model, example)
    row["seconds_analyze"] = time.process_time() - began
    row |= _structure(chosen) | {"smallest_inner": _smallest(chosen)}
    if row["smallest_inner"] > ENOUGH:
        mode, chosen = "joint", analyze(model, example, residual="joint")
        row |= {"groups_joint": len(chosen.groups), "smallest_joint": _smallest(chosen)}
    if not chosen.groups:  # no batch norm follows the channels that may be removed
        chosen, row["criterion"] = (
            analyze(model, example, residual="joint", criterion="magnitude-l1"),
            "magnitude-l1",
        )
        row |= {"groups_joint": len(chosen.groups), "smallest_joint": _smallest(chosen)}
    if not chosen.groups:
        return row | {"status": "nothing to prune"}
    began = time.process_time()
    cut = to_target(chosen)
    row["seconds_cut"] = time.process_time() - began
    began = time.process_time()
    result = apply(model, example, chosen, cut, reconstruction="none")
    row["seconds_rewrite"] = time.process_time() - began
    row |= {"residual": mode, "flops_left": cut.flops / cut.before.flops, "error": result.error}
    row["oracle"] = oracle.difference(oracle.masked(model, result.model), result.model, example)
    recount = count(result.model, example)
    exact = (recount.flops, recount.macs, recount.params) == (cut.flops, cut.macs, cut.params)
    _train_step(result.model, example)
    row["status"] = "pass" if exact and row["oracle"] < 1e-4 else "wrong" if exact else "recount differs"
    return row


def calibrated(entry: Architecture) -> dict[str, Any]:
    """Prune with images to calibrate on, verify, train one step; detectors as docs/detectors.md tells."""
    model, example = prepared(entry, smallest=True)
    if entry.library == "ultralytics" and is_detector(model):
        model = RawPredictions(model).eval()
    row, small = prune_calibrated(model, example)
    if small is not None:
        _train_step(small, example)
    return row


def exported(entry: Architecture) -> dict[str, Any]:
    """Prune, then export and compile."""
    model, example = prepared(entry)
    plan = analyze(model, example, residual="joint")
    small = apply(model, example, plan, to_target(plan), reconstruction="none").model.eval()
    with torch.no_grad():
        expected = next(tensors_in(small(example)))
        program = torch.export.export(small, (example,)).module()
        compiled = torch.compile(small, backend="aot_eager")
        errors = [float((next(tensors_in(f(example))) - expected).abs().max()) for f in (program, compiled)]
    torch._dynamo.reset()
    return {
        "status": "pass" if max(errors) < 1e-3 * float(expected.abs().max()) else "wrong",
        "errors": errors,
    }


def _smallest(plan: Plan) -> float:
    return plan.at(threshold=1.0, round_to=1).flops / plan.before.flops if plan.groups else 1.0


def _structure(plan: Plan) -> dict[str, Any]:
    """Count channels: those that can leave, and those that cannot, by reason."""
    grouping = plan.structure.grouping
    reasons: Counter[str] = Counter()
    for frozen in grouping.frozen:
        reasons[frozen.reason] += frozen.width
    for group in grouping.groups:
        reasons.update(group.fixed.values())
    free = sum(g.width - len(g.fixed) for g in grouping.groups)
    return {
        "groups": len(grouping.groups),
        "channels": free + sum(reasons.values()),
        "free": free,
        "frozen": dict(reasons.most_common()),
        "meta": plan.structure.trace.meta,
    }


def _train_step(model: nn.Module, example: Any) -> None:
    args, kwargs = arguments(example)
    optimiser = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    outs = tensors_in(model.train()(*args, **kwargs))
    torch.stack([t.square().mean() for t in outs if t.is_floating_point()]).sum().backward()
    optimiser.step()


def _size(example: Any) -> list[int]:
    return list(next(tensors_in(example)).shape)


def _is_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError) or "can't allocate memory" in str(error)


_TASKS = {"ours": ours, "calibrated": calibrated, "rival": rival, "exported": exported}


def main() -> None:
    """Answer until standard input ends; the one argument is how many GiB of memory there are."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    memory = int(sys.argv[1]) * 2**30
    resource.setrlimit(
        resource.RLIMIT_AS, (memory, memory)
    )  # else the system ends whichever process it likes
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # models print; the answers must stay readable
    for line in sys.stdin:
        request = json.loads(line)
        entry = Architecture(**{**request["entry"], "sizes": tuple(request["entry"]["sizes"])})
        torch.manual_seed(0)
        began = time.process_time()
        try:
            row = _TASKS[request["task"]](entry)
        except Exception as error:
            ours_says = isinstance(error, SlimilarError)
            status = "out of memory" if _is_memory(error) else "refused" if ours_says else "error"
            row = {"status": status, "what": f"{type(error).__name__}: {error}"[:600], "said": ours_says}
            frames = traceback.extract_tb(error.__traceback__)[-4:]
            row["where"] = [f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in frames]
        row["seconds"] = time.process_time() - began
        answers.write(json.dumps(row) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
