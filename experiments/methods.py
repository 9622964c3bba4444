"""The paper's method and its rivals on one network: same start, same budget, same fine-tuning."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from experiments.experiment import ExperimentRun
from slimilar.comparison import OWN, ComparisonRow, Event, Subject, Terms, compare, load
from slimilar.comparison.choices import decode
from slimilar.comparison.folder import HEADER, read_json
from slimilar.comparison.tasks import Choice, TrainingTask, needed
from slimilar.comparison.work import CHOICES, Bench
from slimilar.criteria import facts
from slimilar.planning.assemble import Answers
from slimilar.reconstruction.methods import Reconstruction

# The names of the paper's tables
CRITERIA = {
    "Ours": "similarity",
    "NS": "slimming",
    "SSL": "structured-sparsity",
    "RDF": "duplicates",
    "PFGM": "geometric-median",
    "SFP": "soft",
    "TN": "thinet",
    "CP": "channel-lasso",
}
TAGS = {criterion: tag for tag, criterion in CRITERIA.items()}
# Our reconstruction: consumers are fitted to unlabelled images before the fine-tuning. Rows keep its first name.
LINEAR = "linear"


def compared(
    experiment: ExperimentRun,
    name: str,
    methods: Sequence[str],
    budgets: Sequence[str],
    sparse_epochs: int,
    images: int,
    apart: bool = False,
) -> None:
    """Enter a row for every method, budget, and for what its own paper does as well as for our reconstruction.

    `images` unlabelled ones are drawn from the training images, for criteria and substitutes that look at some.
    With `apart` networks whose consumers were fitted to them are fine-tuned by the scale's recipe for those. All
    methods of the first budget come before those of the next, so that an unfinished run compares like with like.
    """
    experiment.base(name)
    collect(experiment, name, methods, budgets)
    kind = experiment.network(name).kind
    fitted = experiment.scale.recipe(kind, True) if apart and experiment.scale.fitted else None
    pairs = [pair for pair in _by_importance(methods) if pair[0] in (experiment.methods or methods)]
    for seed, budget, (method, substitute) in product(_seeds(experiment), budgets, pairs):
        in_rows = own_reconstruction(method) if substitute == OWN else substitute
        if not _known(experiment, name, method, budget, in_rows, seed):
            terms = _terms(experiment, name, [method], [budget], (substitute,), sparse_epochs, images)
            terms = replace(terms, seeds=(seed,), fitted_recipe=fitted)
            compare(_subject(experiment, name), terms, experiment.work / name, progress=_tell)
            collect(experiment, name, methods, budgets)


def _by_importance(methods: Sequence[str]) -> list[tuple[str, str]]:
    """Return methods with reconstructions: the headline, then the rows of the paper, then the others.

    Methods with a training phase of their own come after those without, which are known much sooner.

    >>> _by_importance(["Ours", "NS", "RDF"])
    [('Ours', 'own'), ('Ours', 'linear'), ('RDF', 'own'), ('NS', 'own'), ('RDF', 'linear'), ('NS', 'linear')]
    """
    first, *others = sorted(methods, key=lambda m: facts(CRITERIA[m]).needs == "training")
    own, fitted = ([(m, s) for m in others] for s in (OWN, LINEAR))
    return [(first, OWN), (first, LINEAR), *own, *fitted]


def collect(experiment: ExperimentRun, name: str, methods: Sequence[str], budgets: Sequence[str]) -> None:
    """Enter the rows that are known already, also those of a comparison that was interrupted."""
    if (experiment.work / name / HEADER).exists():
        for row in load(experiment.work / name).rows:
            if TAGS[row.criterion] in methods and row.budget in budgets:
                _enter(experiment, name, TAGS[row.criterion], row)


def chosen(experiment: ExperimentRun, name: str, method: str, sparse_epochs: int) -> Answers:
    """Return a method's choice of channels on a network, after its training phase where it has one.

    The work is shared with `compared`: what one of them has done, the other finds.
    """
    criterion = CRITERIA[method]
    phase = TrainingTask(criterion, experiment.seed) if facts(criterion).needs == "training" else None
    choice = Choice(criterion, experiment.seed, phase)
    terms = _terms(
        experiment, name, [method], ["0.5"], (OWN,), sparse_epochs, len(experiment.network(name).images)
    )
    bench = Bench(_subject(experiment, name), terms, experiment.work / name)
    for task in (*needed(choice), choice):
        bench.perform(task)
    return decode(read_json(experiment.work / name / CHOICES / f"{choice.key}.json"))


def _subject(experiment: ExperimentRun, name: str) -> Subject:
    network = experiment.network(name)
    assert network.train is not None, f"{name} has no training images at this scale"
    return Subject(network.model, network.example, network.train, network.test)


def _terms(
    experiment: ExperimentRun,
    name: str,
    methods: Sequence[str],
    budgets: Sequence[str],
    substitutes: tuple[str, ...],
    sparse_epochs: int,
    images: int,
) -> Terms:
    network = experiment.network(name)
    recipe = experiment.scale.recipe(network.kind)
    return Terms(
        tuple(CRITERIA[m] for m in methods), tuple(budgets), substitutes, (experiment.seed,), recipe.epochs, recipe,
        sparse_epochs, images=images, residual=network.residual, sparse_recipe=experiment.scale.sparse,
        score_epochs=experiment.scale.score_epochs, precision=experiment.precision,
    )  # fmt: skip


def _tell(event: Event) -> None:
    print(f"{event.done}/{event.total} {event.title}", file=sys.stderr, flush=True)


def own_reconstruction(method: str) -> str:
    """Return what a method's own paper does about consumers, as rows name it."""
    return _as_in_rows(facts(CRITERIA[method]).reconstruction)


def _as_in_rows(reconstruction: str) -> str:
    return LINEAR if reconstruction == Reconstruction.LEAST_SQUARES else reconstruction


def _seeds(experiment: ExperimentRun) -> tuple[int, ...]:
    return experiment.scale.seeds or (experiment.seed,)


def _key(
    experiment: ExperimentRun, network: str, method: str, budget: str, substitute: str, seed: int
) -> dict[str, Any]:
    """Return the key of a row; the seed is part of it where there are several."""
    key = {"network": network, "method": method, "budget": budget, "substitute": substitute}
    return key if experiment.scale.seeds is None else key | {"seed": seed}


def _known(
    experiment: ExperimentRun, network: str, method: str, budget: str, substitute: str, seed: int
) -> bool:
    key = _key(experiment, network, method, budget, substitute, seed)
    return experiment.ledger.find(**key) is not None


def _enter(experiment: ExperimentRun, network: str, method: str, row: ComparisonRow) -> None:
    key = _key(experiment, network, method, row.budget, _as_in_rows(row.substitute), row.seed)
    seconds = {
        name: round(getattr(row, f"{name}_seconds"), 1) for name in ("prepare", "choose", "prune", "train")
    }
    values = {
        "own": row.own,
        **({} if experiment.precision == "auto" else {"precision": experiment.precision}),
        "flops": row.flops,
        "pruned": None if row.flops_share is None else round(100 * (1 - row.flops_share), 2),
        "before": _percent(row.pruned),
        "prepared": _percent(row.prepared),
        "accuracy": _percent(row.final),
        "error": row.error,
        **({"by_epoch": [_percent(share) for share in row.by_epoch]} if row.by_epoch else {}),
        "took": seconds,  # a training before pruning is shared by the rows of a method
        "seconds": round(sum(v for k, v in seconds.items() if k != "prepare" or row.own), 1),
    }
    experiment.ledger.row(key, lambda: values)


def _percent(share: float | None) -> float | None:
    return None if share is None else round(100 * share, 2)
