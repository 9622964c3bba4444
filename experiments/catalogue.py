"""The experiments by name, and how one is run: rows into a ledger, then a table and figures out of it."""

from __future__ import annotations

import importlib
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slimilar.errors import InvalidInput
from slimilar.utils.suggestions import choose

if TYPE_CHECKING:
    from slimilar.train.settings import Precision
    from slimilar.utils.row_ledger import RowLedger

RESULTS = Path(__file__).parent / "results"
TITLES = {
    "table1a": "Table 1 (a): accuracy and FLOPs on CIFAR, ours against NS, SSL, RDF, PFGM, SFP",
    "table1b": "Table 1 (b): ResNet-50 on ImageNet, ours against TN, NS, CP, PFGM, SFP",
    "table1c": "Table 1 (c): ResNet-50 at four thresholds, saving of FLOPs and of measured time",
    "curve": "Figure 2: accuracy against the share of pruned FLOPs, all methods",
    "estimation": "Figure 3 and appendix D: distance by activations (Eq. 1) and by batch norm (Eq. 4)",
    "normalization": "Figure 4: distances with and without normalisation per layer",
    "architecture": "Figure 5: channels left in each layer at the same cut, ours against NS and SSL",
    "bound": "Proposition 2 on real layers: measured shift, bound, lambda",
    "magnitude": "Figure 1, the motivation: similarity against magnitude where gammas are large and alike",
}
NAMES = tuple(TITLES)


def reproduce(
    name: str,
    scale: str = "paper",
    data: str | Path | None = None,
    out: str | Path = RESULTS,
    seed: int = 0,
    threads: int | None = None,
    show: bool = False,
    precision: Precision = "auto",
    methods: tuple[str, ...] = (),
) -> list[Path]:
    """Run or resume an experiment, and return the files that it wrote.

    Another `precision` than "auto" is that of the trainings of compared methods, and is entered in their rows.
    `methods` are the only ones to compare, by their names in the paper's tables; none stands for all.
    With `show` nothing is computed: table and figures are those of the rows that are there.
    """
    import torch

    from experiments.experiment import ExperimentRun
    from experiments.provenance import opened, work_folder
    from experiments.scales import scale_of

    module: Any = importlib.import_module(f"experiments.{choose(name, NAMES, 'experiment')}")
    if threads is not None:
        torch.set_num_threads(threads)
    chosen, own = scale_of(scale), _settings(module, name, scale)
    place = data if data is not None else os.environ.get("SLIMILAR_DATA")
    folder = Path(out).expanduser() / name
    ledger = opened(folder / f"{scale}.jsonl", _header(name, scale, seed))
    found = None if place is None else Path(place).expanduser()
    work = work_folder() / "experiments" / (scale if precision == "auto" else f"{scale}-{precision}")
    experiment = ExperimentRun(
        chosen, own, ledger, found, seed, work, precision=precision, methods=_known(methods)
    )
    if not show:
        module.run(experiment)
    return write(name, ledger, folder / scale, experiment.work)


def _known(methods: tuple[str, ...]) -> tuple[str, ...]:
    """Return names of methods, or raise where one is unknown."""
    from experiments.methods import CRITERIA

    return tuple(choose(method, list(CRITERIA), "method") for method in methods)


def settings_of(name: str, scale: str) -> dict[str, Any]:
    """Return all that the rows of an experiment depend on: its own settings, and the scale's as far as it uses them.

    Rows of an experiment that trains nothing outlive a change of recipe.
    """
    from experiments.scales import scale_of

    module: Any = importlib.import_module(f"experiments.{choose(name, NAMES, 'experiment')}")
    common, own = asdict(scale_of(scale)), _settings(module, name, scale)
    del common["about"]  # words for readers
    if not module.trains(own):
        for training in ("recipes", "sparse", "seeds", "score_epochs"):
            del common[training]
    if not getattr(module, "APART", False):
        del common["fitted"]
    return {"scale": common, "experiment": asdict(own)}


def _settings(module: Any, name: str, scale: str) -> Any:
    """Return an experiment's own settings at a scale."""
    if scale not in module.SETTINGS:
        raise InvalidInput(
            f"{name} has no scale {scale!r}: there are no training images of its dataset at that scale; "
            f"choose one of {', '.join(module.SETTINGS)}"
        )
    return module.SETTINGS[scale]


def _header(name: str, scale: str, seed: int) -> dict[str, Any]:
    from experiments.provenance import header

    command = f"python -m experiments {name} --scale {scale} --data FOLDER"
    return {"experiment": TITLES[name], **header(command, seed), "settings": settings_of(name, scale)}


def write(name: str, ledger: RowLedger, stem: Path, work: Path | None = None) -> list[Path]:
    """Write the table and the figures of a ledger beside it; nothing is computed.

    The page says how far trainings are whose rows are missing, if it is given the folder of shared work.
    """
    from experiments.figures import save
    from experiments.tables import document
    from slimilar.utils.atomic import write_text

    module: Any = importlib.import_module(f"experiments.{name}")
    figures = module.figures(ledger)
    files = [file for part, figure in figures.items() for file in save(figure, stem, part)]
    images = [file.name for file in files if file.suffix == ".svg"]
    trainings = _under_way(ledger, work) if work is not None else []
    page = write_text(stem.with_suffix(".md"), document(ledger, module.table(ledger), images, trainings))
    return [ledger.path, page, *files]


def _under_way(ledger: RowLedger, work: Path) -> list[str]:
    """Return how far the trainings are that compared methods wait for, network by network."""
    from experiments.experiment import LABELS
    from slimilar.comparison import under_way

    networks = dict.fromkeys(str(row["network"]) for row in ledger.rows if "network" in row)
    return [f"{LABELS[name]}: {status}" for name in networks for status in under_way(work / name)]
