"""The report in a real browser: what a person does there and takes along is what `Plan.at` and `prune` do."""

from __future__ import annotations

import csv
import io
import json
import re
import shlex

import pytest
from _browser import OpenPage
from safetensors.torch import save_file
from typer.testing import CliRunner

from helpers.report_networks import EXAMPLE
from helpers.report_page import command_options
from helpers.small_networks import trained
from slimilar import prune
from slimilar.models import build
from slimilar.planning.target import PruningTarget
from slimilar.report import write_report

# --- what a person does -------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    ("kind", "amount", "words", "shell", "python"),
    [
        ("flops", "0.5", "Chosen for a FLOPs budget of 0.5: ", "--flops 0.5", "flops=0.5)"),
        ("flops", "10%", "Chosen for a FLOPs budget of 10%: ", "--flops 10%", 'flops="10%")'),
        ("latency", "12ms", "Chosen for a latency budget of 12ms: ", "--latency 12ms  # measures again",
         'latency="12ms")  # measures again'),
        ("threshold", 0.05, "Channels closer than 0.05 are merged: ", "--threshold 0.05", "threshold=0.05)"),
    ],
)  # fmt: skip
def test_it_opens_with_what_was_asked_for(browser, plan, tmp_path, kind, amount, words, shell, python):
    target = PruningTarget(kind, amount)
    cut = plan.at(flops=0.5) if kind == "latency" else plan.cut(target)
    file = write_report(tmp_path / "page.html", plan, title="", source="net.py:Net", cut=cut, target=target)
    view = OpenPage(browser, file)
    assert view.widths() == cut.widths
    assert view.text("#sentence").startswith(words)
    assert view.text("#command").startswith(f"slimilar prune net.py:Net {shell}")
    view.page.click("#as-python")
    assert f"slimilar.prune(model, x, {python}" in view.text("#command")
    view.page.click("#as-shell")
    view.page.fill("#threshold", "0.2")
    view.page.press("#threshold", "Enter")
    assert view.text("#sentence").startswith("Channels closer than 0.2 are merged")
    assert plan.at(**command_options(view.text("#command"))).widths == view.widths()
    view.page.click("#reset")
    assert view.text("#sentence").startswith(words)
    view.close_quietly()


def test_dragging_on_the_curve_is_the_same(opened, plan):
    opened.page.locator("#curve svg").scroll_into_view_if_needed()
    box = opened.page.locator("#curve svg").bounding_box()
    opened.page.mouse.click(box["x"] + box["width"] * 0.5, box["y"] + 60)
    options = command_options(opened.text("#command"))
    assert 0.15 < options["threshold"] < 0.35
    assert opened.widths() == plan.at(options["threshold"]).widths


def test_typing_a_budget(opened, plan):
    opened.page.fill("#budget", "40%")
    opened.page.press("#budget", "Enter")
    assert opened.widths() == plan.at(plan.threshold_within(PruningTarget("flops", 0.4))).widths
    opened.page.select_option("#budget-kind", "params")
    opened.page.click("#budget-go")
    assert opened.widths() == plan.at(plan.threshold_within(PruningTarget("params", 0.4))).widths
    assert "smallest that meets" in opened.text("#budget-note")


@pytest.mark.parametrize(
    ("text", "answer"), [("0.001%", "smallest reachable value"), ("lots", "is not a budget")]
)
def test_a_budget_that_cannot_be_met_says_so(opened, text, answer):
    before = opened.widths()
    opened.page.fill("#budget", text)
    opened.page.press("#budget", "Enter")
    assert answer in opened.text("#budget-note")
    assert opened.page.get_attribute("#budget", "aria-invalid") == "true"
    assert opened.widths() == before


def test_a_layer_close_up(opened):
    opened.page.focus("#slider")
    opened.page.keyboard.press("End")  # all that can leave, whatever is rounded
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
    assert "represents" in opened.text("#layer")


def test_a_layer_of_its_own_will(opened, plan):
    opened.page.locator("#rows button", has_text="inner").click()
    opened.page.get_by_role("button", name="Keep all channels").click()
    assert opened.widths() == plan.at(0.05, thresholds={"inner.0": 0}).widths
    assert "--layer inner.0=0" in opened.text("#command")
    opened.page.locator("canvas.tree").click(position={"x": 100, "y": 10})
    opened.settle()
    options = command_options(opened.text("#command"))
    assert options["thresholds"]["inner.0"] > 0.05
    assert opened.widths() == plan.at(**options).widths
    opened.page.get_by_role("button", name="Global threshold").click()
    assert opened.widths() == plan.at(0.05).widths
    assert "--layer" not in opened.text("#command")


def test_a_frozen_layer_says_why(opened):
    row = opened.page.locator("#rows button", has_text="outer")
    row.hover()
    assert "residual stream" in opened.text("#tip")
    assert "residual stream" in str(row.get_attribute("aria-label"))
    row.click()
    assert "Kept whole" in opened.text("#layer")


def test_the_keyboard_is_enough(opened, plan):
    page = opened.page
    page.focus("#slider")
    before = sum(opened.widths().values())
    for _ in range(150):  # widths are rounded: it takes a block of channels
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


# --- what a person takes along ------------------------------------------------------------------------------------


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
    names = {"model": network}
    exec(opened.text("#command"), names)
    assert names["result"].cut.widths == shown


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
    view = OpenPage(browser, file)
    view.page.fill("#budget", "62%")
    view.page.press("#budget", "Enter")
    view.page.select_option("#round", "8")
    view.page.locator("#rows button").nth(3).click()
    view.page.get_by_role("button", name="Keep all channels").click()
    view.page.locator("#rows button").nth(1).click()
    view.page.locator("canvas.tree").click(position={"x": 80, "y": 40})
    shown = view.widths()
    program, *words = shlex.split(view.text("#command"))
    assert program == "slimilar"
    slimilar_says(*words, "-o", tmp_path / "small")
    done = json.loads((tmp_path / "small" / "plan.json").read_text())
    assert {name: layer["after"] for name, layer in done["layers"].items()} == shown
    again = OpenPage(browser, tmp_path / "small" / "report.html")
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
