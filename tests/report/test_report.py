"""The report as a file: what it holds, what it must not hold, and what it says about a plan."""

from __future__ import annotations

import json
import os
import random
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from helpers.report_networks import HOSTILE, Mixed, Named
from helpers.small_networks import trained
from slimilar import analyze
from slimilar.planning.plan import Plan
from slimilar.planning.rounding import roundings
from slimilar.report import Point, write_report
from slimilar.report.flow import Row, flow, in_lanes
from slimilar.report.page import embed
from slimilar.report.state import opening, state_of

EXAMPLE = torch.zeros(1, 3, 16, 16)


@pytest.fixture(scope="module")
def plan() -> Plan:
    torch.manual_seed(0)
    return analyze(trained(Mixed()), EXAMPLE)


@pytest.fixture
def report(tmp_path) -> Any:
    """Return what writes a report and reads it again."""
    return lambda plan, **options: write_report(tmp_path / "page.html", plan, **options).read_text()


def data_in(page: str) -> dict[str, object]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def test_rows_are_the_layers_and_joins_in_order(plan):
    rows = flow(plan)
    assert [row.name for row in rows if row.units is not None] == [
        "stem.0", "inner.0", "outer.0", "dense1.0", "dense2.0", "wide.0", "left.0", "gate", "right.0", "head",
    ]  # fmt: skip
    assert [row.kind for row in rows if row.units is None] == [
        "input", "add", "concat", "concat", "gate", "concat", "output",
    ]  # fmt: skip


def test_a_dense_block_is_one_stream_that_grows(plan):
    rows = flow(plan)
    first, second = (
        i for i, row in enumerate(rows) if row.kind == "concat" and len(row.shape) == 4 and i < 10
    )
    assert rows[second].inputs == (first, second - 1)
    assert max(row.lane for row in rows) <= 2


def test_every_layer_of_a_frozen_stream_says_why(plan):
    reasons = {row.name: row.reason for row in flow(plan)}
    assert reasons["stem.0"] == reasons["outer.0"] == 'residual stream (pruned in residual mode "joint")'
    assert reasons["head"] == "model output"
    assert reasons["inner.0"] is None


def test_an_excluded_layer_says_so():
    rows = flow(analyze(trained(Mixed()), EXAMPLE, exclude=["inner"]))
    assert next(row.reason for row in rows if row.name == "inner.0") == "excluded"


def test_no_two_streams_share_a_lane():
    rng = np.random.default_rng(0)
    for _ in range(50):
        count = int(rng.integers(2, 30))
        inputs = [
            tuple(np.unique(rng.integers(0, i, rng.integers(1, 4))).tolist()) if i else ()
            for i in range(count)
        ]
        rows = in_lanes([Row("conv", str(i), found) for i, found in enumerate(inputs)])
        last = [max((j for j in range(count) if i in inputs[j]), default=i) for i in range(count)]
        for i in range(count):
            running = [rows[s].lane for s in range(i) if last[s] > i]
            running += [rows[i].lane] if last[i] > i else []
            assert len(set(running)) == len(running)


def test_a_report_is_one_file_that_asks_for_nothing(plan, tmp_path):
    path = write_report(
        tmp_path / "new" / "report.html", plan, title="A network", source="net.py --input 3x16x16"
    )
    page = path.read_text()
    assert os.listdir(path.parent) == ["report.html"]
    assert "default-src 'none'" in page
    assert not re.findall(r"""(?:src|href)=["'](?!#)""", page)
    assert "http://www.w3.org/2000/svg" in page
    assert set(re.findall(r"https?://[^\s\"'`)]+", page)) == {"http://www.w3.org/2000/svg"}


def test_a_failed_write_leaves_the_old_report(plan, tmp_path, monkeypatch):
    path = write_report(tmp_path / "report.html", plan, title="old")
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        write_report(path, plan, title="new")
    assert os.listdir(tmp_path) == ["report.html"]
    assert "<title>old" in path.read_text()


def test_names_stay_text(report):
    model = trained(Named())
    page = report(analyze(model, EXAMPLE), model=model, title=HOSTILE[0], source=HOSTILE[1])
    for name in HOSTILE[:2]:
        assert name not in page
    assert page.count("</script>") == 2
    data = data_in(page)
    assert data["title"] == HOSTILE[0]
    assert [group["name"] for group in data["groups"]] == [f"{name}.0" for name in HOSTILE]


@pytest.mark.parametrize("text", ["</script>", "<!--", "\u2028", "{{script}}", "&lt;", "\ud800"])
def test_embedded_data_reads_back_the_same(text):
    assert json.loads(embed([text])) == [text]
    assert not re.search("[<>&]", embed([text]))


def test_only_gamma_and_beta_are_taken(report):
    model = trained(Mixed())
    plan = analyze(model, EXAMPLE)
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    norms = {n: t for n, t in tensors.items() if t.ndim == 1}
    assert report(plan, model=model, title="") == report(plan, model=norms, title="")
    data = data_in(report(plan, title=""))
    assert not any(group["norms"] for group in data["groups"])


@pytest.mark.parametrize("round_to", [1, 3, 8])
@pytest.mark.parametrize("own", [{}, {"inner.0": 0.0}, {"inner.0": 0.31, "wide.0": 0.02}])
def test_the_page_opens_at_the_cut(plan, round_to, own):
    cut = plan.at(0.12, round_to=round_to, thresholds=own)
    state = state_of(plan, cut)
    again = plan.at(state.threshold, round_to=state.round_to, thresholds=state.thresholds)
    assert again.widths == cut.widths
    assert set(state.thresholds) <= set(own)


@pytest.mark.parametrize("round_to", [1, 4, "auto"])
@pytest.mark.parametrize("seed", range(4))
def test_the_page_opens_at_widths_that_no_threshold_gives(plan, round_to, seed):
    dice, rounding = random.Random(seed), roundings(round_to)[0]
    steps = [dice.randint(0, plan.limit(g) // 2) for g in range(len(plan.groups))]
    cut = replace(plan.cut_after(1.0, steps, rounding), by_threshold=False)
    state = state_of(plan, cut)
    again = plan.at(state.threshold, round_to=state.round_to, thresholds=state.thresholds)
    assert again.widths == cut.widths
    assert len(state.thresholds) < len(plan.groups)
    assert state.round_to in {"auto", 1, 2, 4, 8, 16, 32}


def test_the_fewest_layers_have_a_threshold_of_their_own(plan):
    own = {plan.groups[0].name: 0.0}
    exact = plan.at(0.12, round_to=4, thresholds=own)
    state = state_of(plan, replace(exact, threshold=1.0, by_threshold=False))
    assert set(state.thresholds) <= set(own)
    assert state.threshold < 1


def test_without_a_cut_it_opens_at_half_the_work(plan):
    assert plan.at(opening(plan, None).threshold).flops <= 0.5 * plan.before.flops
    stiff = replace(plan, min_channels=1000)
    assert opening(stiff, None).threshold == 1.0


def test_a_model_without_prunable_layers_has_a_report_too(report):
    model = nn.Sequential(nn.Conv2d(3, 4, 3))
    data = data_in(report(analyze(model, EXAMPLE), model=model, title="one layer"))
    assert data["groups"] == []
    assert data["state"]["threshold"] == 0.0


def test_measurements_travel_along(plan, report):
    page = report(
        plan, title="", points=[Point("fine-tuned", 10, 0.93)], rows=[{"method": "ours", "top-1": 0.93}]
    )
    data = data_in(page)
    assert data["points"] == [{"label": "fine-tuned", "flops": 10, "accuracy": 0.93}]
    assert data["measured"] == [{"method": "ours", "top-1": 0.93}]


def test_text_can_be_read_in_both_themes(report):
    """Contrast of at least 4.5 to 1 for text, 3 to 1 for what is drawn (WCAG 2.2 AA)."""
    page = re.sub(r"\s+", " ", report(analyze(trained(Mixed()), EXAMPLE), title=""))
    for block in re.findall(r":root(?:\[data-theme=\"dark\"\])? \{ (.*?)\}", page):
        inks = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", block))
        for text in ("ink", "muted", "kept", "gone", "own"):
            for ground in ("paper", "card", "press"):
                assert contrast(inks[text], inks[ground]) >= 4.5, (text, ground)
        assert contrast(inks["kept"], inks["gone-soft"]) >= 3
        assert contrast(inks["kept"], inks["stays"]) >= 1.5


def contrast(one: str, other: str) -> float:
    def light(ink: str) -> float:
        parts = [int(ink[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))

    dark, bright = sorted((light(one), light(other)))
    return (bright + 0.05) / (dark + 0.05)
