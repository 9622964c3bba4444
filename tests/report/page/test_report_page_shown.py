"""The report in a real browser: what it shows is what `Plan.at` says, of any network, on any screen."""

from __future__ import annotations

import importlib
import random
import re
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
import torch
from _browser import PHONE, OpenPage

from helpers.report_networks import EXAMPLE, HOSTILE, Mixed, Named
from helpers.report_page import command_options
from helpers.small_networks import NETWORKS, trained
from slimilar import analyze
from slimilar.planning.cost import CostModel
from slimilar.planning.target import PruningTarget
from slimilar.report import Point, write_report
from slimilar.similarity.removal_order import NO_REPRESENTATIVE, RemovalOrder

ASK = """states => states.map(({threshold, roundTo, own}) => {
    const names = slimilar.network.groups.map(group => group.name);
    const state = {threshold, roundTo, own: new Map(own.map(([name, t]) => [names.indexOf(name), t]))};
    const {flops, macs, params, kept} = slimilar.network.measure(state);
    return [flops, macs, params, kept];
})"""


# --- the same numbers ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mixed", "resnet-joint", "preresnet-select", "densenet", "mobilenet"])
def test_every_state_has_the_numbers_of_the_plan(browser, tmp_path, name):
    network, residual = NETWORKS.get(name, (Mixed, "inner"))
    plan = analyze(trained(network()), EXAMPLE, residual=residual, min_channels=3)
    # A vector in which units occur unevenly: sliced, repeated and constant positions.
    uneven = np.array([-1, 0, 0, 0, 2, 5, 20, 21, 21], np.int64)
    term = replace(plan.costs.terms[0], vectors=(len(plan.costs.vectors),))
    costs = CostModel((*plan.costs.terms, term), plan.costs.parameters, (*plan.costs.vectors, uneven))
    plan = replace(plan, costs=costs)
    view = OpenPage(browser, write_report(tmp_path / "page.html", plan, title="numbers"))
    dice = random.Random(0)
    states = []
    for _ in range(60):
        own = [
            (group.name, dice.choice([0, 1, dice.random()])) for group in plan.groups if dice.random() < 0.25
        ]
        threshold = dice.choice([0, 1, dice.random() ** 3, *plan.orders[0].heights[:3]])
        states.append({"threshold": threshold, "roundTo": dice.choice([1, "auto", 3, 8, 64]), "own": own})
    for state, (flops, macs, params, kept) in zip(states, view.page.evaluate(ASK, states), strict=True):
        cut = plan.at(state["threshold"], round_to=state["roundTo"], thresholds=dict(state["own"]))
        assert (flops, macs, params) == (cut.flops, cut.macs, cut.params)
        assert kept == list(cut.widths.values())
    view.close_quietly()


def test_budgets_find_the_threshold_of_the_plan(opened, plan):
    texts = ["50%", "0.31", "9M", "12.5k", "90 %"]
    for kind in ("flops", "macs", "params"):
        for text in texts:
            found = opened.page.evaluate(
                """([kind, text]) => { const n = slimilar.network;
                return n.meet(kind, slimilar.parseBudget(text, n.before[kind]), {roundTo: 4, own: new Map()}) }""",
                [kind, text],
            )
            if "threshold" in found:
                assert found["threshold"] == plan.threshold_within(PruningTarget(kind, text, 4))
            else:
                assert found["smallest"] == getattr(plan.at(1.0, round_to=4), kind)


# --- marks on the curve -------------------------------------------------------------------------------------------


def test_it_opens_at_the_cut(opened, plan):
    assert opened.widths() == plan.at(0.05).widths
    assert opened.text("h1") == "A mixed network"
    assert "2.1 ms" in opened.text("#tiles")
    assert opened.page.locator(".mark").count() == 1
    assert "0.93" in opened.text("#measured")


def test_the_time_of_other_cuts_is_interpolated(opened, plan):
    """Half-way between the FLOPs of two cuts whose times are known; what was measured stays as it is."""
    before = plan.before.flops
    find = "limit => { const {threshold} = slimilar.network.meet('flops', limit, slimilar.state); return threshold; }"
    threshold = opened.page.evaluate(find, before // 2)
    opened.page.fill("#threshold", repr(threshold))
    opened.page.press("#threshold", "Enter")
    flops = plan.at(threshold).flops
    assert before // 4 < flops <= before // 2
    expected = 1.2 + 2.0 * (flops - before // 4) / (before - before // 4)
    shown = re.search(r"≈ ([0-9.]+) ms", opened.text("#tiles"))
    assert shown is not None
    assert float(shown[1]) == pytest.approx(expected, rel=0.01)
    assert "interpolated by FLOPs, two cores" in opened.text("#tiles")


def test_accuracies_at_nearly_the_same_cost_are_one_mark(browser, network, plan, tmp_path):
    flops = plan.before.flops
    points = [Point(str(i), flops // 2 + i, 0.9 - 0.1 * i) for i in range(4)] + [Point("all", flops, 0.95)]
    page = write_report(tmp_path / "r.html", plan, model=network, title="Many", points=points)
    view = OpenPage(browser, page)
    texts = view.page.locator(".mark text").all()
    assert [text.text_content() for text in texts] == ["95.0 %", "60.0 to 90.0 %"]
    titles = [title.text_content() for title in view.page.locator(".mark title").all()]
    assert [len(title.splitlines()) for title in titles] == [1, 4]
    assert "2: 70.0 % at" in titles[1]
    view.close_quietly()


def test_accuracies_are_written_apart(browser, network, plan, tmp_path):
    points = [Point(str(t), plan.at(t).flops, 0.9 - t / 2) for t in (0.0, 0.02, 0.03, 0.05, 0.08, 0.1, 0.2)]
    page = write_report(tmp_path / "r.html", plan, model=network, title="Many", points=points)
    view = OpenPage(browser, page)
    boxes = [text.bounding_box() for text in view.page.locator(".mark text").all()]
    assert len(boxes) > 3
    for a, b in combinations(boxes, 2):
        left, right = sorted((a, b), key=lambda box: box["x"])
        apart = max(right["x"] - left["x"] - left["width"], abs(a["y"] - b["y"]) - 0.7 * a["height"])
        assert apart >= -1
    view.close_quietly()


# --- other eyes, other screens, other networks --------------------------------------------------------------------


def test_it_fits_a_phone(on_phone, plan):
    page = on_phone.page
    assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")
    box = page.locator("#slider").bounding_box()
    assert box["y"] + box["height"] <= PHONE["height"]
    page.locator("#rows button", has_text="inner").tap()
    on_phone.settle()
    assert page.locator("#layer").is_visible()
    page.touchscreen.tap(box["x"] + 0.6 * box["width"], box["y"] + box["height"] / 2)
    options = command_options(on_phone.text("#command"))
    assert on_phone.widths() == plan.at(**options).widths
    assert options["threshold"] > 0.2
    page.get_by_role("button", name="Close this layer").tap()
    assert page.locator("#layer").is_hidden()


def test_it_can_be_dark(browser, report_file):
    view = OpenPage(browser, report_file, color_scheme="dark")
    ground = "getComputedStyle(document.body).backgroundColor"
    dark = view.page.evaluate(ground)
    view.page.click("#theme")
    light = view.page.evaluate(ground)
    assert (dark, light) == ("rgb(15, 19, 24)", "rgb(247, 246, 242)")
    view.close_quietly()


def test_hostile_names_do_nothing(browser, tmp_path):
    model = trained(Named())
    plan = analyze(model, EXAMPLE)
    file = write_report(
        tmp_path / "page.html", plan, model=model, title=HOSTILE[0], source="x.py",
        points=[Point(HOSTILE[1], 10**6, 1)], rows=[{HOSTILE[0]: HOSTILE[1]}],
    )  # fmt: skip
    view = OpenPage(browser, file)
    for i, name in enumerate(HOSTILE):
        view.page.locator("#rows button").nth(i).click()
        assert view.text("#layer-title") == f"{name}.0"
        view.page.locator("#rows button").nth(i).hover()
        view.page.get_by_role("button", name="Keep all channels").click()
    assert view.text("h1") == HOSTILE[0]
    options = command_options(view.text("#command"))
    assert options["thresholds"] == {f"{name}.0": 0.0 for name in HOSTILE}
    view.page.click("#as-python")
    thresholds = re.search(r"thresholds=(\{.*\})\)", view.text("#command"))
    assert thresholds is not None
    assert eval(thresholds[1]) == options["thresholds"]
    with view.page.expect_download() as found:
        view.page.click("#csv")
    assert "\n'=HYPERLINK(1).0," in found.value.path().read_text().replace("\r\n", "\n")
    view.close_quietly()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet50", "densenet121"])
def test_large_networks_are_small_files_and_answer_at_once(browser, tmp_path, monkeypatch, name):
    measured = importlib.import_module("report")
    file = measured.page_of(name, "inner", tmp_path)
    _, cpu = measured.drag(browser, file)
    assert file.stat().st_size < 5e6
    assert measured.ready(browser, file) < 1500
    assert cpu < 50


def test_an_order_in_which_nobody_stands_in(browser, plan, network, tmp_path):
    orders = tuple(
        RemovalOrder(order.removed, order.heights, np.full_like(order.representative, NO_REPRESENTATIVE))
        for order in plan.orders
    )
    ranked = replace(plan, orders=orders)
    view = OpenPage(browser, write_report(tmp_path / "page.html", ranked, model=network, title="ranked"))
    view.page.locator("#rows button", has_text="inner").click()
    assert view.widths() == plan.at(plan.threshold_within(PruningTarget("flops", 0.5))).widths
    command = view.text("#command")
    assert command.startswith("import slimilar\nimport torch\n")
    assert "slimilar.prune(model, x, threshold=" in command
    view.close_quietly()


def test_nothing_to_prune_is_no_error(browser, tmp_path):
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3))
    file = write_report(tmp_path / "page.html", analyze(model, EXAMPLE), model=model, title="one layer")
    view = OpenPage(browser, file)
    assert view.page.locator("#rows button").count() == 1
    assert "No layer of this model can be pruned" in view.text("#sentence")
    view.close_quietly()
