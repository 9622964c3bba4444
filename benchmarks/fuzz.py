"""Prune generated networks, most of them with tiny groups, and judge each by its weights alone.

    python benchmarks/fuzz.py                       # a thousand networks, into benchmarks/results/fuzz.txt
    python benchmarks/fuzz.py --networks 200 --seed 7 --minutes 5

A network is a stem of 2 to 8 channels and one to six random steps of `tests/helpers/networks.py`: every operator that
there is a rule for. It is pruned by the public function, in a random residual mode and by a random ratio. No network
may come out wrong: the original, with all entries set to zero that the smaller one no longer has, must give the same
output. Where activations are summed over channels without a weight, or by a parameter of the code's own, and under
weight_norm, the weights of layers do not tell; these networks are verified by `prune` only. Refused are networks that
the analysis took for prunable and `prune` did not. Those where nothing can be removed, because their steps mix or fix
all channels, are counted apart.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import torch
from _results import RESULTS, header
from _zoo import oracle
from torch import nn

import slimilar
from slimilar.errors import NothingToPrune, SlimilarError
from slimilar.graph.groups import Residual
from slimilar.planning.plan import Plan
from slimilar.utils.atomic import write_text

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from helpers.networks import STEPS, Network  # the path is known only here

LAYERS = (nn.modules.conv._ConvNd, nn.Linear)  # those that the oracle masks
X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


@dataclass(frozen=True)
class Draw:
    """One generated network, and how it is pruned."""

    steps: tuple[str, ...]
    stem: int
    residual: Residual
    ratio: float

    @classmethod
    def number(cls, seed: int, i: int) -> Draw:
        """Return the network of a number: the same on every machine."""
        dice = random.Random(f"{seed} {i}")
        steps = tuple(dice.choices(sorted(STEPS), k=dice.randint(1, 6)))
        return cls(steps, dice.randint(2, 8), dice.choice(get_args(Residual)), dice.uniform(0.2, 0.9))


def outcome(draw: Draw) -> tuple[str, str]:
    """Prune a network; return how it ended, and what was said."""
    model = oracle.randomise(Network(draw.steps, draw.stem).float())
    try:
        result = slimilar.prune(
            model, X, ratio=draw.ratio, criterion="magnitude-l2", residual=draw.residual, reconstruction="none"
        )  # fmt: skip
    except NothingToPrune:
        return "nothing to prune", ""
    except SlimilarError as error:
        return "refused", str(error)
    except Exception as error:  # what the user must never see
        return "error", f"{type(error).__name__}: {error}"
    said, found = result.cut.cost, slimilar.count(result.model, X)
    if (said.flops, said.macs, said.params) != (found.flops, found.macs, found.params):
        return "wrong", "the costs differ from what was said"
    if not told_by_weights(model, result.plan):
        return "verified only", ""
    difference = oracle.difference(oracle.masked(model, result.model), result.model, X)
    return ("pruned", "") if difference < 1e-4 else ("wrong", f"outputs differ by {difference:.2g}")


def told_by_weights(model: nn.Module, plan: Plan) -> bool:
    """Tell whether all that reads channels is a weight of a convolution or linear layer, which the oracle can mask."""
    trace = plan.structure.trace
    read_by = {c.weight.rpartition(".")[0] for g in plan.groups for c in g.consumers if c.weight is not None}
    plain = all(isinstance(model.get_submodule(path), LAYERS) for path in read_by)
    return plain and not trace.reductions and not trace.weight_norms


def report(counts: Counter[str], told: list[str], seconds: float) -> str:
    """Return the counts, and every network that did not end well."""
    listed = {
        "pruned, right by the weights alone": counts["pruned"],
        "pruned, verified (sums, own parameters)": counts["verified only"],
        "nothing to prune": counts["nothing to prune"],
        "refused with a reason": counts["refused"],
        "wrong": counts["wrong"],
        "raised": counts["error"],
    }
    lines = [
        f"{'networks generated':<40} {counts.total()}",
        *(f"{kind:<40} {n}" for kind, n in listed.items()),
    ]
    return "\n".join([*lines, f"{'processor time':<40} {seconds:.0f} s", *told])


def main() -> None:
    """Run, and print and write the counts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--networks", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=60, help="stop after so many, by the clock")
    parser.add_argument("--out", type=Path, default=RESULTS / "fuzz.txt")
    options = parser.parse_args()
    torch.set_num_threads(1)
    counts, told, began = Counter[str](), list[str](), time.monotonic()
    for i in range(options.networks):
        draw = Draw.number(options.seed, i)
        status, words = outcome(draw)
        counts[status] += 1
        if words:
            told.append(f"  {i} {status}: {draw}: {words}")
            print(told[-1], file=sys.stderr, flush=True)
        if time.monotonic() - began > 60 * options.minutes:
            break
    command = f"python benchmarks/fuzz.py --networks {options.networks} --seed {options.seed}"
    text = f"{header(command, options.seed)}\n{report(counts, told, time.process_time())}\n"
    write_text(options.out, text)
    print(text, end="")
    sys.exit(bool(counts["wrong"] or counts["error"]))


if __name__ == "__main__":
    main()
