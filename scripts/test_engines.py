"""Run the tests of the optional engines (ONNX Runtime, OpenVINO, Ray) and record the run.

    make test-engines      installs the engines, writes benchmarks/results/engines.txt

A skipped test counts as a failure here: this is where the engines are known to run.
"""

from __future__ import annotations

import contextlib
import io
import sys
from importlib.metadata import version

import pytest
from _results import RESULTS, print_header

from slimilar.utils.atomic import write_text

ENGINES = ("onnxruntime", "openvino", "ray")


class Outcomes:
    """A pytest plugin that keeps one line for each test."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.all_passed = True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the outcome of a test; of its setup and teardown only what went wrong."""
        if report.when == "call" or not report.passed:
            self.lines.append(f"{report.outcome:<8} {report.duration:6.1f} s  {report.nodeid}")
            self.all_passed &= report.passed


def main(words: list[str]) -> int:
    """Run the tests; return 0 if every one of them ran and passed."""
    outcomes = Outcomes()
    code = pytest.main(["-m", "engines", "tests/deploy", "tests/comparison", *words], plugins=[outcomes])
    if code != 0 or not outcomes.all_passed:
        return int(code) or 1
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        print_header("make test-engines", 0)
    installed = ", ".join(f"{name} {version(name)}" for name in ENGINES)
    write_text(
        RESULTS / "engines.txt",
        "\n".join([text.getvalue() + f"# engines   {installed}\n", *outcomes.lines, ""]),
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
