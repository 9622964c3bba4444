"""A browser, and a report that several files open in it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from _browser import PHONE, OpenPage, find_browser, started

from helpers.report_networks import EXAMPLE, Mixed
from helpers.small_networks import trained
from slimilar import analyze
from slimilar.planning.plan import Plan
from slimilar.report import Latency, Point, write_report


@pytest.fixture(scope="module")
def browser() -> Any:
    pytest.importorskip(
        "playwright", reason="the driver of the browser is not installed: pip install playwright"
    )
    if find_browser() is None:
        pytest.skip("no Chromium here: install it, or name one in SLIMILAR_BROWSER")
    with started() as found:
        yield found


@pytest.fixture(scope="module")
def network() -> Any:
    torch.manual_seed(0)
    return trained(Mixed())


@pytest.fixture(scope="module")
def plan(network) -> Plan:
    return analyze(network, EXAMPLE)


@pytest.fixture(scope="module")
def report_file(network, plan, tmp_path_factory) -> Any:
    return write_report(
        tmp_path_factory.mktemp("report") / "report.html", plan, model=network, title="A mixed network",
        source="mixed.py:Mixed --input 3x16x16", cut=plan.at(0.05), points=[Point("before", plan.before.flops, 0.93)],
        latency=Latency(3.2, 2.1, "two cores", [(plan.before.flops, 3.2), (plan.before.flops // 4, 1.2)]),
        rows=[{"method": "ours", "top-1": 0.93}],
    )  # fmt: skip


@pytest.fixture
def opened(browser, report_file) -> Any:
    view = OpenPage(browser, report_file)
    yield view
    view.close_quietly()


@pytest.fixture
def on_phone(browser, report_file) -> Any:
    view = OpenPage(browser, report_file, viewport=PHONE, has_touch=True, is_mobile=True)
    yield view
    view.close_quietly()
