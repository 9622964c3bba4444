"""The report in a real browser: what a person sees, does and copies is what `Plan.at` and `prune` do."""

from __future__ import annotations

import csv
import importlib
import io
import json
import random
import re
import shlex
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

from _browser import PHONE, Opened, command_options, find_browser, started
from _report_networks import HOSTILE, Mixed, Named
from _small_networks import NETWORKS, trained
from slimilar import analyze, prune
from slimilar.cost import CostModel
from slimilar.models import build
from slimilar.plan import Plan
from slimilar.report import Latency, Point, write_report
from slimilar.similarity import NOBODY, RemovalOrder

pytest.importorskip("playwright", reason="the driver of the browser is not installed: pip install playwright")
if find_browser() is None:
    pytest.skip("no Chromium here: install it, or name one in SLIMILAR_BROWSER", allow_module_level=True)

EXAMPLE = torch.zeros(1, 3, 16, 16)
ASK = """states => states.map(({threshold, roundTo, own}) => {
    const names = slimilar.network.groups.map(group => group.name);
    const state = {threshold, roundTo, own: new Map(own.map(([name, t]) => [names.indexOf(name), t]))};
    const {flops, macs, params, kept} = slimilar.network.measure(state);
    return [flops, macs, params, kept];
})"""


@pytest.fixture(scope="module")
def browser() -> Any:
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
        latency=Latency(3.2, 2.1, "two cores"), rows=[{"method": "ours", "top-1": 0.93}],
    )  # fmt: skip


@pytest.fixture
def opened(browser, report_file) -> Any:
    view = Opened(browser, report_file)
    yield view
    view.close_quietly()


@pytest.fixture
def on_phone(browser, report_file) -> Any:
    view = Opened(browser, report_file, viewport=PHONE, has_touch=True, is_mobile=True)
    yield view
    view.close_quietly()


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
    view = Opened(browser, write_report(tmp_path / "page.html", plan, title="numbers"))
    dice = random.Random(0)
    states = []
    for _ in range(60):
        own = [
            (group.name, dice.choice([0, 1, dice.random()])) for group in plan.groups if dice.random() < 0.25
        ]
        threshold = dice.choice([0, 1, dice.random() ** 3, *plan.orders[0].heights[:3]])
        states.append({"threshold": threshold, "roundTo": dice.choice([1, 1, 3, 8, 64]), "own": own})
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
                assert found["threshold"] == plan.at(**{kind: text}, round_to=4).threshold
            else:
                assert found["smallest"] == getattr(plan.at(1.0, round_to=4), kind)


# --- what a person does -------------------------------------------------------------------------------------------


def test_it_opens_at_the_cut(opened, plan):
    assert opened.widths() == plan.at(0.05).widths
    assert opened.text("h1") == "A mixed network"
    assert "2.1 ms" in opened.text("#tiles")
    assert opened.page.locator(".mark").count() == 1
    assert "0.93" in opened.text("#measured")


def test_accuracies_at_nearly_the_same_cost_are_one_mark(browser, network, plan, tmp_path):
    flops = plan.before.flops
    points = [Point(str(i), flops // 2 + i, 0.9 - 0.1 * i) for i in range(4)] + [Point("all", flops, 0.95)]
    page = write_report(tmp_path / "r.html", plan, model=network, title="Many", points=points)
    view = Opened(browser, page)
    texts = view.page.locator(".mark text").all()
    assert [text.text_content() for text in texts] == ["95.0 %", "60.0 to 90.0 %"]
    titles = [title.text_content() for title in view.page.locator(".mark title").all()]
    assert [len(title.splitlines()) for title in titles] == [1, 4]
    assert "2: 70.0 % at" in titles[1]
    view.close_quietly()


def test_accuracies_are_written_apart(browser, network, plan, tmp_path):
    points = [Point(str(t), plan.at(t).flops, 0.9 - t / 2) for t in (0.0, 0.02, 0.03, 0.05, 0.08, 0.1, 0.2)]
    page = write_report(tmp_path / "r.html", plan, model=network, title="Many", points=points)
    view = Opened(browser, page)
    boxes = [text.bounding_box() for text in view.page.locator(".mark text").all()]
    assert len(boxes) > 3
    for a, b in combinations(boxes, 2):
        left, right = sorted((a, b), key=lambda box: box["x"])
        apart = max(right["x"] - left["x"] - left["width"], abs(a["y"] - b["y"]) - 0.7 * a["height"])
        assert apart >= -1
    view.close_quietly()


def test_dragging_the_slider_moves_everything(opened, plan):
    box = opened.page.locator("#slider").bounding_box()
    y = box["y"] + box["height"] / 2
    opened.page.mouse.move(box["x"] + 2, y)
    opened.page.mouse.down()
    seen = []
    for share in (0.2, 0.35, 0.5, 0.8):
        opened.page.mouse.move(box["x"] + share * box["width"], y)
        widths = opened.widths()
        threshold = command_options(opened.text("#command"))["threshold"]
        assert widths == plan.at(threshold).widths
        seen.append(sum(widths.values()))
    opened.page.mouse.up()
    assert seen == sorted(seen, reverse=True)
    assert len(set(seen)) == 4
    cut = plan.at(command_options(opened.text("#command"))["threshold"])
    assert f"{cut.widths['inner.0']} / 40" in opened.text("#rows li:has(b:text-is('inner.0'))")
    assert f"{100 * cut.flops / cut.before.flops:.1f} %" in opened.text("#sentence")


def test_dragging_on_the_curve_is_the_same(opened, plan):
    box = opened.page.locator("#curve svg").bounding_box()
    opened.page.mouse.click(box["x"] + box["width"] * 0.5, box["y"] + 60)
    options = command_options(opened.text("#command"))
    assert 0.15 < options["threshold"] < 0.35
    assert opened.widths() == plan.at(options["threshold"]).widths


def test_typing_a_budget(opened, plan):
    opened.page.fill("#budget", "40%")
    opened.page.press("#budget", "Enter")
    assert opened.widths() == plan.at(flops=0.4).widths
    opened.page.select_option("#budget-kind", "params")
    opened.page.click("#budget-go")
    assert opened.widths() == plan.at(params=0.4).widths
    assert "smallest that meets" in opened.text("#budget-note")


@pytest.mark.parametrize(
    ("text", "answer"), [("0.001%", "least that can be reached"), ("lots", "is no budget")]
)
def test_a_budget_that_cannot_be_met_says_so(opened, text, answer):
    before = opened.widths()
    opened.page.fill("#budget", text)
    opened.page.press("#budget", "Enter")
    assert answer in opened.text("#budget-note")
    assert opened.page.get_attribute("#budget", "aria-invalid") == "true"
    assert opened.widths() == before


def test_a_layer_close_up(opened):
    opened.page.locator("#rows button", has_text="inner").click()
    opened.settle()
    assert opened.text("#layer-title") == "inner.0"
    assert re.search(r"40 → \d+ channels", opened.text("#layer .widths"))
    assert opened.page.locator("#layer canvas").count() == 3
    inked = (
        "nodes => nodes.map(c => new Set(c.getContext('2d').getImageData(0, 0, c.width, c.height).data).size)"
    )
    assert min(opened.page.eval_on_selector_all("#layer canvas", inked)) > 10
    assert "outer.0" in opened.text("#layer .around")
    assert "speaks for" in opened.text("#layer")


def test_a_layer_of_its_own_will(opened, plan):
    opened.page.locator("#rows button", has_text="inner").click()
    opened.page.get_by_role("button", name="Keep whole").click()
    assert opened.widths() == plan.at(0.05, thresholds={"inner.0": 0}).widths
    assert "--layer inner.0=0" in opened.text("#command")
    opened.page.locator("canvas.tree").click(position={"x": 100, "y": 10})
    opened.settle()
    options = command_options(opened.text("#command"))
    assert options["thresholds"]["inner.0"] > 0.05
    assert opened.widths() == plan.at(**options).widths
    opened.page.get_by_role("button", name="Follow the threshold").click()
    assert opened.widths() == plan.at(0.05).widths
    assert "--layer" not in opened.text("#command")


def test_the_copied_command_gives_what_is_on_the_screen(opened, network):
    opened.context.grant_permissions(["clipboard-read", "clipboard-write"])
    opened.page.fill("#budget", "55%")
    opened.page.press("#budget", "Enter")
    opened.page.select_option("#round", "8")
    opened.page.locator("#rows button", has_text="wide").click()
    opened.page.fill("#layer .own-controls > input", "0.3")
    opened.page.keyboard.press("Enter")
    shown = opened.widths()
    opened.page.click("#copy")
    opened.page.locator("#copy", has_text="Copied").wait_for()
    command = opened.page.evaluate("navigator.clipboard.readText()")
    assert command == opened.text("#command")
    options = command_options(command)
    assert options["round_to"] == 8
    result = prune(network, EXAMPLE, **options)
    assert result.cut.widths == shown
    assert result.model.inner[0].out_channels == shown["inner.0"]
    opened.page.click("#as-python")
    again = eval(
        opened.text("#command"), {"slimilar": __import__("slimilar"), "model": network, "x": EXAMPLE}
    )
    assert again.cut.widths == shown


def slimilar_says(*words: object) -> str:
    """Run the command line and return what it prints."""
    from slimilar.cli import app

    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    return done.output


def test_from_explore_to_prune_on_the_command_line(browser, tmp_path):
    file, weights = tmp_path / "explore.html", tmp_path / "its weights.safetensors"
    save_file(trained(build("vgg16", width=0.25)).state_dict(), weights)
    slimilar_says("explore", "slimilar:vgg16,width=0.25", "--weights", weights, "--no-open", "-o", file)
    view = Opened(browser, file)
    view.page.fill("#budget", "62%")
    view.page.press("#budget", "Enter")
    view.page.select_option("#round", "8")
    view.page.locator("#rows button").nth(3).click()
    view.page.get_by_role("button", name="Keep whole").click()
    view.page.locator("#rows button").nth(1).click()
    view.page.locator("canvas.tree").click(position={"x": 80, "y": 40})
    shown = view.widths()
    program, *words = shlex.split(view.text("#command"))
    assert program == "slimilar"
    slimilar_says(*words, "-o", tmp_path / "small")
    done = json.loads((tmp_path / "small" / "plan.json").read_text())
    assert {name: layer["after"] for name, layer in done["layers"].items()} == shown
    again = Opened(browser, tmp_path / "small" / "report.html")
    assert again.widths() == shown
    view.close_quietly()
    again.close_quietly()


def test_table_and_downloads(opened, plan):
    opened.page.locator("#table").scroll_into_view_if_needed()
    opened.settle()
    with opened.page.expect_download() as found:
        opened.page.click("#csv")
    rows = list(csv.DictReader(io.StringIO(found.value.path().read_text())))
    cut = plan.at(0.05)
    assert [row["layer"] for row in rows][:2] == ["stem.0", "inner.0"]
    assert rows[1]["channels after"] == str(cut.widths["inner.0"])
    assert rows[1]["FLOPs after"] == str(cut.cost.modules["inner.0"][0])
    assert (rows[-1]["FLOPs before"], rows[-1]["FLOPs after"]) == (str(plan.before.flops), str(cut.flops))
    assert sum(int(row["parameters after"]) for row in rows[:-1]) == cut.params
    assert opened.page.locator("#table tbody tr").count() == len(rows)
    with opened.page.expect_download() as found:
        opened.page.click("#png")
    assert found.value.suggested_filename == "A-mixed-network.png"
    assert found.value.path().read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_a_frozen_layer_says_why(opened):
    row = opened.page.locator("#rows button", has_text="outer")
    row.hover()
    assert "residual stream" in opened.text("#tip")
    assert "residual stream" in str(row.get_attribute("aria-label"))
    row.click()
    assert "Stays whole" in opened.text("#layer")


def test_the_keyboard_is_enough(opened, plan):
    page = opened.page
    page.focus("#slider")
    before = sum(opened.widths().values())
    for _ in range(30):
        page.keyboard.press("ArrowRight")
    assert sum(opened.widths().values()) < before
    page.locator("#rows button[tabindex='0']").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    assert "residual stream" in opened.text("#tip")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    assert opened.text("#layer-title") == "inner.0"
    page.keyboard.press("Escape")
    assert page.locator("#layer").is_hidden()
    assert page.evaluate("document.activeElement.dataset.row") is not None
    reached = set()
    page.evaluate("document.activeElement.blur()")
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id"))
    assert {"slider", "threshold", "budget", "round", "copy", "csv", "png", "theme"} <= reached


def test_a_number_that_was_not_touched_changes_nothing(opened):
    opened.page.fill("#budget", "47%")
    opened.page.press("#budget", "Enter")
    opened.settle()
    command = opened.text("#command")
    opened.page.click("#threshold")
    opened.page.keyboard.press("Enter")
    opened.page.keyboard.press("Tab")
    opened.settle()
    assert opened.text("#command") == command
    opened.page.fill("#threshold", "0,2")
    opened.page.keyboard.press("Enter")
    opened.settle()
    assert "--threshold 0.2" in opened.text("#command")


# --- other eyes, other screens, other networks ----------------------------------------------------------------------


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
    view = Opened(browser, report_file, color_scheme="dark")
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
    view = Opened(browser, file)
    for i, name in enumerate(HOSTILE):
        view.page.locator("#rows button").nth(i).click()
        assert view.text("#layer-title") == f"{name}.0"
        view.page.locator("#rows button").nth(i).hover()
        view.page.get_by_role("button", name="Keep whole").click()
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
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "benchmarks")
    measured = importlib.import_module("report")
    file = measured.page_of(name, "inner", tmp_path)
    _, cpu = measured.drag(browser, file)
    assert file.stat().st_size < 5e6
    assert measured.ready(browser, file) < 1500
    assert cpu < 50


def test_an_order_in_which_nobody_stands_in(browser, plan, network, tmp_path):
    orders = tuple(
        RemovalOrder(order.removed, order.heights, np.full_like(order.stand_in, NOBODY))
        for order in plan.orders
    )
    ranked = replace(plan, orders=orders)
    view = Opened(browser, write_report(tmp_path / "page.html", ranked, model=network, title="ranked"))
    view.page.locator("#rows button", has_text="inner").click()
    assert view.widths() == plan.at(flops=0.5).widths
    assert view.text("#command").startswith("slimilar.prune(model, x, threshold=")
    view.close_quietly()


def test_nothing_to_prune_is_no_error(browser, tmp_path):
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3))
    file = write_report(tmp_path / "page.html", analyze(model, EXAMPLE), model=model, title="one layer")
    view = Opened(browser, file)
    assert view.page.locator("#rows button").count() == 1
    assert "Nothing here can be cut" in view.text("#sentence")
    view.close_quietly()
