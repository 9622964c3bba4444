"""`slimilar bench`: latency and throughput, the models in turn."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slimilar.cli import options
from slimilar.cli.known_names import RUNTIMES, check_one_of
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
            help="Models to compare; times are shown relative to the first model.", metavar="MODELS"
        ),
    ],
    *,
    engine: Annotated[
        tuple[str, ...],
        typer.Option(
            help="pytorch, compile, onnxruntime, openvino, tensorrt, or 'all' installed ones. Repeatable.",
            metavar="NAME",
        ),
    ] = (),
    batch: Annotated[int, typer.Option(help="Batch size.", min=1, metavar="N")] = 1,
    seconds: Annotated[
        float, typer.Option(help="Duration of the measurement in each engine.", min=0, metavar="SECONDS")
    ] = 5.0,
    layers: Annotated[
        int,
        typer.Option(
            help="Show the N layers that take the most time (pytorch, onnxruntime).", min=0, metavar="N"
        ),
    ] = 5,
    threads: options.Threads = None,
    source: ModelOptions,
    seed: options.Seed = 0,
    place: Placement,
    out: Output,
) -> None:
    """Measure latency and throughput of models in alternation, with 95 % confidence intervals.

    The table shows time saved, FLOPs saved and their ratio: 1 means that time falls as fast as FLOPs.

    Example: [bold]slimilar bench slimilar:demo small/model.safetensors --engine all[/]
    """
    source.check(*models)
    for name in engine:
        check_one_of("engine", name, (*RUNTIMES, "all"))
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
    count = torch.get_num_threads()
    threads_used = f"{count} thread{'s' * (count > 1)}, " if device.type == "cpu" else ""
    where = f"{hardware}, batch {batch}, {threads_used}medians and 95 % intervals of runs in turn"
    out.table(["<engine", "<model", "ms", "<95 %", "images/s", "time", "<95 %"], rows, where)
    savings = _savings(opened, models, found, batch)
    _show_savings(out, savings)
    profiles = {name: _profiles(out, name, opened, batch, layers) for name in found} if layers else {}
    about = {"batch": batch, "device": str(device), "hardware": hardware, "threads": torch.get_num_threads()}
    engines = {name: _described(timings, models) for name, timings in found.items()}
    answer = {
        **about,
        "torch": torch.__version__,
        "engines": engines,
        "savings": [{**asdict(s), "ratio": s.ratio} for s in savings],
    }
    out.answer(answer | ({"layers": profiles} if layers else {}))


@dataclass(frozen=True)
class Saving:
    """What a model saves beside the first one, in one engine."""

    engine: str
    model: str
    flops: float  # shares of the first one's
    time: float
    slower: bool  # by more than the interval of the measurement

    @property
    def ratio(self) -> float | None:
        """Return time saved by FLOPs saved; None where no FLOPs are."""
        return (1 - self.time) / (1 - self.flops) if self.flops < 1 else None


def _savings(
    opened: dict[str, OpenedModel], models: list[str], found: dict[str, Timings], batch: int
) -> list[Saving]:
    """Return what every model but the first saves; none where the models are not to be counted."""
    import slimilar

    others = [name for name in dict.fromkeys(models) if name != models[0]]
    if not others or not found:
        return []
    flops = {
        name: slimilar.count(opened[name].model, opened[name].example(batch)).flops
        for name in [models[0], *others]
    }
    savings = []
    for engine, timings in found.items():
        for name in others:
            ratio = timings.ratio(name, models[0])
            share = flops[name] / max(1, flops[models[0]])
            savings.append(Saving(engine, name, share, ratio.value, ratio.low > 1))
    return savings


def _show_savings(out: Output, savings: list[Saving]) -> None:
    from slimilar.cli.output import less

    rows = [
        [
            s.engine,
            escape(s.model),
            less(1.0, s.flops),
            less(1.0, s.time),
            "" if s.ratio is None else f"{s.ratio:.2f}",
        ]
        for s in savings
    ]
    if rows:
        out.table(["<engine", "<model", "FLOPs", "time", "time saved / FLOPs saved"], rows)
    for s in savings:
        if s.slower and s.flops < 1:
            out.note(
                f"{escape(s.model)} has fewer FLOPs but is slower in {s.engine}: prune with the default rounding "
                "(no --round-to 1), or with a latency budget: --latency 0.7 --runtime NAME"
            )


def _profiles(
    out: Output, engine: str, opened: dict[str, OpenedModel], batch: int, most: int
) -> dict[str, list[dict[str, Any]]]:
    """Show where the time of every model goes in an engine, and return it."""
    from slimilar.deploy.layer_profile import profile

    found = {}
    for name, model in opened.items():
        with out.working(f"Profiling the layers in {engine}"):
            layers = profile(engine, model.model, model.example(batch))
        whole = sum(layer.milliseconds for layer in layers) or 1.0
        rows = [
            [escape(x.name), x.kind, f"{x.milliseconds:.3g}", f"{100 * x.milliseconds / whole:.1f} %"]
            for x in layers[:most]
        ]
        if rows:
            out.table(
                ["<layer", "<", "ms", "share"],
                rows,
                f"{escape(name)} in {engine}: the slowest of {len(layers)} layers",
            )
        found[name] = [asdict(layer) for layer in layers]
    return found


def _engines(wanted: tuple[str, ...]) -> list[str]:
    from slimilar.deploy.runtimes import available

    return available() if "all" in wanted else list(dict.fromkeys(wanted))


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
            out.note(f"{engine} skipped: {escape(reason)}")
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
