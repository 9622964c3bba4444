"""Draw the chart of docs/compare.md from the rows of benchmarks/results/compare.

    python scripts/criteria_chart.py [--out docs/images/criteria.svg]

The rows were computed when some criteria and `least-squares` had other names; the chart has the present ones.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from slimilar.comparison.chart import draw
from slimilar.comparison.folder import load
from slimilar.comparison.rows import Comparison

ROOT = Path(__file__).resolve().parents[1]
CRITERIA = {"similarity-pictures": "similarity-images", "similarity-readers": "similarity-consumers"}
METHODS = {"linear": "least-squares"}  # with images, as all these rows were


def renamed(found: Comparison) -> Comparison:
    """Return a comparison under the present names of criteria, reconstruction methods and terms."""
    rows = tuple(
        replace(
            row,
            criterion=CRITERIA.get(row.criterion, row.criterion),
            substitute=METHODS.get(row.substitute, row.substitute),
        )
        for row in found.rows
    )
    terms = {name.replace("pictures", "images"): value for name, value in found.header["terms"].items()}
    return Comparison(found.baseline, rows, {**found.header, "terms": terms})


def main() -> None:
    """Read the arguments and draw the chart."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images" / "criteria.svg")
    draw(renamed(load(ROOT / "benchmarks" / "results" / "compare")), [parser.parse_args().out])


if __name__ == "__main__":
    main()
