"""What the demo measures, with its command, versions and hardware: the numbers in the README.

    python benchmarks/demo.py > benchmarks/results/demo.txt

The shipped network and images, so that anyone can repeat it. Accuracy is that of 1,000 test images, without
fine-tuning; time is that of 32 images at once, all networks interleaved, medians and 95 % intervals of the ratios.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile

from _results import print_header

from slimilar.planning.cost import human

SEED, SECONDS = 0, 20


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        words = ["demo", "--json", "--seed", str(SEED), "--seconds", str(SECONDS), "-o", folder]
        done = subprocess.run(
            [sys.executable, "-m", "slimilar", *words], stdout=subprocess.PIPE, text=True, check=True
        )
    found = json.loads(done.stdout)
    print_header("python benchmarks/demo.py", SEED)
    print()
    print(f"{'what is done':<14} {'FLOPs':>9} {'parameters':>11} {'accuracy':>9} {'ms':>7}  time (95 %)")
    times, ratios = found["milliseconds"], found["ratios"]
    print(line("original", found, times["1.0"]["value"], None))
    for row in found["settings"]:
        share = str(row["share"]) if row["how"] == "span" else None
        print(
            line(row["how"], row, times[share]["value"] if share else None, ratios[share] if share else None)
        )


def line(how: str, row: dict[str, float], ms: float | None, ratio: dict[str, float] | None) -> str:
    """Return one setting as a line."""
    time = "" if ms is None else f"{ms:.1f}"
    text = "" if ratio is None else f"{ratio['value']:.2f} ({ratio['low']:.2f}..{ratio['high']:.2f})"
    costs = f"{human(row['flops']):>9} {human(row['params']):>11}"
    return f"{how:<14} {costs} {100 * row['accuracy']:>7.1f} % {time:>7}  {text}".rstrip()


if __name__ == "__main__":
    main()
