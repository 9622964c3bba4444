"""`slimilar bench`: latency and throughput, the models in turn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from slimilar.cli import options
from slimilar.cli.model_source import OpenedModel, open_model
from slimilar.cli.output import Output, escape

if TYPE_CHECKING:
    from slimilar.deploy.latency import Run, Timings
    from slimilar.planning.latency import Interval


def bench(
    models: Annotated[
        list[str],
        typer.Argument(
            help="Models to compare; times are shown as shares of the first one's.", metavar="MODEL..."
        ),
    ],
    engine: Annotated[
        list[str] | None,
        typer.Option(
            help="pytorch, compile, onnxruntime, openvino, or 'all' that are installed. Repeatable.",
            metavar="NAME",
        ),
    ] = None,
    batch: Annotated[int, typer.Option(help="Batch size.", min=1, metavar="N")] = 1,
    seconds: Annotated[
        float, typer.Option(help="How long to measure with each engine.", min=0, metavar="SECONDS")
    ] = 5.0,
    threads: options.Threads = None,
    weights: options.Weights = None,
    input: options.Input = None,
    base: options.Base = None,
    seed: options.Seed = 0,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Measure latency and throughput, all models in turn, with 95 % confidence intervals.

    Example: [bold]slimilar bench slimilar:demo small/model.safetensors --engine all[/]
    """
    import torch

    out = Output(json, quiet)
    if threads is not None:
        torch.set_num_threads(threads)
    opened = {name: open_model(name, None if name.endswith((".safetensors", ".onnx")) else weights, input, base)
              for name in models}  # fmt: skip
    found: dict[str, Timings] = {}
    for name in _engines(engine or ["pytorch"]):
        timings = _measured(out, name, opened, batch, seconds, seed, must="all" not in (engine or []))
        if timings is not None:
            found[name] = timings
    rows = [row for name, timings in found.items() for row in _rows(name, timings, models, batch)]
    where = f"batch {batch}, {torch.get_num_threads()} threads, medians and 95 % intervals of runs in turn"
    out.table(["<engine", "<model", "ms", "<95 %", "images/s", "time", "<95 %"], rows, where)
    out.answer({"batch": batch, "threads": torch.get_num_threads(), "torch": torch.__version__,
                "engines": {n: _described(t, models) for n, t in found.items()}})  # fmt: skip


def _engines(wanted: list[str]) -> list[str]:
    from slimilar.deploy.runtimes import available, check_engine

    return available() if "all" in wanted else [check_engine(name) for name in dict.fromkeys(wanted)]


def _measured(
    out: Output,
    engine: str,
    opened: dict[str, OpenedModel],
    batch: int,
    seconds: float,
    seed: int,
    must: bool,
) -> Timings | None:
    """Return the timings of one engine; None, with a remark, where it does not work here and need not."""
    from slimilar.deploy.latency import measure
    from slimilar.deploy.runtimes import ENGINES
    from slimilar.errors import InvalidInput, SlimilarError

    runs: dict[str, Run] = {}
    with out.working(f"Preparing {engine}"):
        try:
            for name, model in opened.items():
                runs[name] = ENGINES[engine](model.model, model.example(batch))
        except InvalidInput:
            raise
        except Exception as error:  # a compiler that is missing, an operator that a runtime does not know
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            if must:
                raise SlimilarError(f"{engine} cannot run this here: {reason}") from error
            out.note(f"{engine} left out: {escape(reason)}")
            return None
    with out.working(f"Measuring with {engine}") as tell:
        return measure(runs, seconds=seconds, seed=seed, progress=tell)


def _rows(engine: str, timings: Timings, models: list[str], batch: int) -> list[list[str]]:
    rows = []
    for name in dict.fromkeys(models):
        ms, ratio = timings.milliseconds(name), timings.ratio(name, models[0])
        share = [f"{100 * ratio.value:.1f} %", f"{100 * ratio.low:.1f}..{100 * ratio.high:.1f}"]
        rows.append(
            [engine, escape(name), f"{ms.value:.3g}", f"{ms.low:.3g}..{ms.high:.3g}",
             f"{1000 * batch / ms.value:.0f}", *(share if name != models[0] else ["100 %", ""])]
        )  # fmt: skip
    return rows


def _described(timings: Timings, models: list[str]) -> dict[str, Any]:
    return {
        name: {
            "milliseconds": _plain(timings.milliseconds(name)),
            "ratio": _plain(timings.ratio(name, models[0])),
            "rounds": len(timings.samples),
        }
        for name in dict.fromkeys(models)
    }


def _plain(interval: Interval) -> dict[str, float]:
    return {"value": interval.value, "low": interval.low, "high": interval.high}
