"""`slimilar bench`: latency and throughput, the models in turn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from slimilar.cli import options
from slimilar.cli.model_options import ModelOptions, Placement
from slimilar.cli.model_source import OpenedModel
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
    *,
    engine: Annotated[
        tuple[str, ...],
        typer.Option(
            help="pytorch, compile, onnxruntime, openvino, tensorrt, or 'all' that are installed. Repeatable.",
            metavar="NAME",
        ),
    ] = (),
    batch: Annotated[int, typer.Option(help="Batch size.", min=1, metavar="N")] = 1,
    seconds: Annotated[
        float, typer.Option(help="How long to measure with each engine.", min=0, metavar="SECONDS")
    ] = 5.0,
    threads: options.Threads = None,
    source: ModelOptions,
    seed: options.Seed = 0,
    place: Placement,
    out: Output,
) -> None:
    """Measure latency and throughput, all models in turn, with 95 % confidence intervals.

    Example: [bold]slimilar bench slimilar:demo small/model.safetensors --engine all[/]
    """
    import torch

    from slimilar.utils.devices import device_name
    from slimilar.utils.modules import device_of

    if threads is not None:
        torch.set_num_threads(threads)
    opened = {name: place.of(found) for name, found in source.open_all(models).items()}
    found: dict[str, Timings] = {}
    for name in _engines(engine or ("pytorch",)):
        timings = _measured(out, name, opened, batch, seconds, seed, must="all" not in engine)
        if timings is not None:
            found[name] = timings
    rows = [row for name, timings in found.items() for row in _rows(name, timings, models, batch)]
    device = device_of(opened[models[0]].model)
    hardware = device_name(device)
    threads_used = f"{torch.get_num_threads()} threads, " if device.type == "cpu" else ""
    where = f"{hardware}, batch {batch}, {threads_used}medians and 95 % intervals of runs in turn"
    out.table(["<engine", "<model", "ms", "<95 %", "images/s", "time", "<95 %"], rows, where)
    about = {"batch": batch, "device": str(device), "hardware": hardware, "threads": torch.get_num_threads()}
    engines = {name: _described(timings, models) for name, timings in found.items()}
    out.answer({**about, "torch": torch.__version__, "engines": engines})


def _engines(wanted: tuple[str, ...]) -> list[str]:
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
    from slimilar.utils.modules import device_of

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
        place = device_of(next(iter(opened.values())).model)
        return measure(runs, seconds=seconds, seed=seed, progress=tell, device=place)


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
