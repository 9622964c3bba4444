"""``python -m experiments NAME``: run or resume an experiment, and write its table and figures."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import get_args

from experiments.catalogue import NAMES, RESULTS, TITLES, reproduce
from experiments.scales import SCALES
from slimilar.errors import SlimilarError
from slimilar.train.settings import Precision


def main(words: list[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    listed = "\n".join(f"  {name:<14} {title}" for name, title in TITLES.items())
    scales = "\n".join(f"  {name:<14} {scale.about}" for name, scale in SCALES.items())
    parser = argparse.ArgumentParser(
        prog="python -m experiments",
        description=f"{__doc__}\n\nNAME is one of these, or 'all':\n{listed}\n\nscales:\n{scales}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", metavar="NAME", choices=[*NAMES, "all"])
    parser.add_argument("--scale", choices=list(SCALES), default="paper")
    parser.add_argument("--data", type=Path, help="folder of datasets and checkpoints; or set SLIMILAR_DATA")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of results (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, help="threads of PyTorch")
    parser.add_argument("--precision", choices=get_args(Precision), default="auto",
                        help="of the trainings; some processors compute convolutions faster in bfloat16")  # fmt: skip
    parser.add_argument("--methods", metavar="LIST", type=lambda words: tuple(words.split(",")), default=(),
                        help="compare these methods alone, as in: NS,SSL; processes with folders of their own "
                        "(SLIMILAR_RUNS) can so share the rows of a table")  # fmt: skip
    parser.add_argument("--show", action="store_true", help="compute nothing; write what the known rows tell")
    args = parser.parse_args(words)
    try:
        for name in NAMES if args.name == "all" else [args.name]:
            done = reproduce(
                name, args.scale, args.data, args.out, args.seed, args.threads, args.show, args.precision,
                args.methods,
            )  # fmt: skip
            print(*done, sep="\n")
    except SlimilarError as error:
        print(f"experiments: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
