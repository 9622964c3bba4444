"""Criteria side by side: the same for all, a row as soon as it is known, whatever happens in between."""

from __future__ import annotations

import csv
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import slimilar
from _comparing import RECIPE, TERMS, subject
from slimilar.cli import app
from slimilar.cli.subjects import Named
from slimilar.comparison import Comparison, Event, Row, compare, load
from slimilar.comparison.chart import apart
from slimilar.comparison.choices import decode, encode
from slimilar.comparison.schedule import run as schedule
from slimilar.comparison.table import lines, markdown
from slimilar.comparison.tasks import Choice, Entry, Phase, Start, entries, in_order, needed
from slimilar.comparison.terms import calibration
from slimilar.criteria import available, facts
from slimilar.data import demo_pictures
from slimilar.errors import InvalidInput, StoreError
from slimilar.train import evaluate, train

HERE = Path(__file__).parent
PROGRAM = [sys.executable, "-m", "slimilar"]
ON_DEMO = [
    "compare", "slimilar:demo", "--data", "demo", "--criteria", "magnitude-l1,random", "--flops", "0.6",
    "--epochs", "1", "--pictures", "16", "--train-pictures", "16", "--test-pictures", "20", "--threads", "1",
]  # fmt: skip
CLOCKS = ("prepare_seconds", "choose_seconds", "prune_seconds", "train_seconds", "resumed")


def plain(found: Comparison) -> dict[str, dict[str, object]]:
    """Return rows without what the clock says."""
    return {row.key: {k: v for k, v in asdict(row).items() if k not in CLOCKS} for row in found.rows}


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> tuple[Path, Comparison]:
    """A comparison that ran through in one go."""
    folder = tmp_path_factory.mktemp("whole")
    return folder, compare(subject(), TERMS, folder, threads=1)


# --- what a row says ----------------------------------------------------------------------------------------------


def test_a_row_for_everything_that_was_asked(whole):
    rows = whole[1].rows
    own = {name: facts(name).substitute for name in TERMS.criteria}
    wanted = {
        (c, s, b) for c in TERMS.criteria for b in TERMS.flops for s in ("linear", own[c])
    }  # where they are the same, one row serves for both
    assert {(r.criterion, r.substitute, r.budget) for r in rows} == wanted
    assert len(rows) == len(wanted)
    assert all(r.own == (r.substitute == own[r.criterion]) for r in rows)


def test_a_row_is_what_one_would_get_by_hand(whole):
    """Pruned, measured, trained and measured by the plain functions."""
    row = next(r for r in whole[1].rows if r.key == "magnitude-l1-linear-0.5-0")
    s, pictures = subject(), calibration(subject(), TERMS, 0)[0]
    pruned = slimilar.prune(
        s.model, s.example, flops="0.5", criterion="magnitude-l1", substitute="linear", calibration=pictures
    )
    tuned = train(pruned.model, s.train, RECIPE).model
    start = slimilar.count(s.model, s.example)
    assert row.before == evaluate(s.model, s.test).accuracy
    assert row.pruned == evaluate(pruned.model, s.test).accuracy
    assert row.tuned == evaluate(tuned, s.test).accuracy
    assert (row.flops, row.params) == (pruned.cut.flops, pruned.cut.params)
    assert row.flops_share == row.flops / start.flops <= 0.5


def test_calibration_pictures_are_training_pictures_by_seed():
    first, again, other = (calibration(subject(), TERMS, seed)[0] for seed in (0, 0, 1))
    everything = subject().train.batch(torch.arange(300))[0].flatten(1)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert (first.flatten(1)[:, None] == everything).all(2).any(1).all()
    assert len(first) == TERMS.pictures


def test_one_choice_serves_budgets_and_substitutes(whole):
    names = {path.stem for path in (whole[0] / "choices").iterdir()}
    assert names == {f"{criterion}-0" for criterion in TERMS.criteria}


def test_a_choice_survives_its_file():
    s = subject()
    plan = slimilar.analyze(s.model, s.example)
    remembered = decode(json.loads(json.dumps(encode(plan))))
    again = slimilar.analyze(s.model, s.example, criterion=remembered)
    for before, after in zip(plan.orders, again.orders, strict=True):
        assert before.removed.tolist() == after.removed.tolist()
        assert before.heights.tolist() == after.heights.tolist()
        assert before.stand_in.tolist() == after.stand_in.tolist()


# --- training before pruning --------------------------------------------------------------------------------------


def trainers() -> list[str]:
    return [name for name in available() if facts(name).needs == "training"]


def test_criteria_that_train_first(tmp_path):
    """Their extra epochs are counted; a phase is shared by budgets unless it must know the budget."""
    terms = replace(TERMS, criteria=tuple(trainers()), substitutes=("own",), epochs=0, sparse_epochs=2)
    found = compare(subject(), terms, tmp_path, threads=1)
    assert all(row.error is None for row in found.rows), [row.error for row in found.rows]
    assert {row.extra_epochs for row in found.rows} == {2}
    assert all(row.prepared is not None and row.tuned is None for row in found.rows)
    phases = {path.name for path in (tmp_path / "phases").iterdir()}
    wanted = set()
    for name in trainers():
        wanted |= {f"{name}-{b}-0" for b in terms.flops} if facts(name).per_budget else {f"{name}-0"}
    assert phases == wanted


def test_the_others_may_have_as_many_plain_epochs(tmp_path):
    terms = replace(
        TERMS, criteria=("magnitude-l1",), flops=("0.5",), substitutes=("own",), plain_epochs=True
    )
    (row,) = compare(subject(), replace(terms, epochs=0), tmp_path, threads=1).rows
    by_hand = train(subject().model, subject().train, RECIPE).model
    assert (row.extra_epochs, row.prepared) == (1, evaluate(by_hand, subject().test).accuracy)


def test_what_needs_what():
    terms = replace(TERMS, criteria=("span",), flops=("0.5",), substitutes=("own",), plain_epochs=True)
    (entry,) = entries(terms)
    assert in_order([entry]) == [Start(), Phase("plain", 0), Choice("span", 0, Phase("plain", 0)), entry]
    assert needed(entry) == (Start(), entry.choice)


# --- going on -----------------------------------------------------------------------------------------------------


def test_a_second_call_does_nothing_and_says_so(whole):
    events: list[Event] = []
    before = (whole[0] / "rows.jsonl").read_bytes()
    compare(subject(), TERMS, whole[0], threads=1, progress=events.append)
    assert (whole[0] / "rows.jsonl").read_bytes() == before
    assert [event.title for event in events] == ["10 of 10 rows are there already"]


def test_criteria_budgets_and_seeds_may_be_added(tmp_path):
    terms = replace(TERMS, criteria=("magnitude-l1",), substitutes=("own",), epochs=0)
    compare(subject(), terms, tmp_path, threads=1)
    more = replace(terms, criteria=("random",), seeds=(0, 1))
    found = compare(subject(), more, tmp_path, threads=1)
    assert len(found.rows) == 2 + 4
    zero, one = ([r.pruned for r in found.rows if r.criterion == "random" and r.seed == s] for s in (0, 1))
    assert zero != one
    assert len(lines(found.rows)) == 4
    assert " ± " in markdown(found)


def test_fitted_networks_may_have_a_recipe_of_their_own(tmp_path):
    """One that changes nothing, so that it shows who was given it."""
    still = replace(RECIPE, lr=1e-12, freeze_statistics=True)
    terms = replace(TERMS, criteria=("magnitude-l1",), flops=("0.5",), fitted_recipe=still)
    rows = {r.substitute: r for r in compare(subject(), terms, tmp_path, threads=1).rows}
    assert rows["linear"].tuned == rows["linear"].pruned
    assert rows["none"].tuned != rows["none"].pruned
    with pytest.raises(InvalidInput, match=r"recipe of fitted networks must be .*, got None"):
        compare(subject(), replace(terms, fitted_recipe=None), tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epochs": 2}, r"epochs must be 1 as in the comparison in .*, got 2; ask for the same"),
        ({"pictures": 32}, "calibration pictures must be 64"),
        ({"recipe": replace(RECIPE, lr=0.5)}, "recipe must be"),
        ({"sparse_epochs": 3}, "sparse epochs must be 1"),
        ({"fitted_recipe": RECIPE}, "recipe of fitted networks must be None"),
    ],
)
def test_other_terms_are_refused(whole, change, message):
    with pytest.raises(InvalidInput, match=message):
        compare(subject(), replace(TERMS, **change), whole[0])


def test_other_weights_or_pictures_are_refused(whole):
    other = train(subject().model, subject().train, replace(RECIPE, lr=1e-6)).model
    with pytest.raises(InvalidInput, match="model must be"):
        compare(replace(subject(), model=other), TERMS, whole[0])
    with pytest.raises(InvalidInput, match=r"training pictures must be '300, .*got '299"):
        compare(replace(subject(), train=subject().train.first(299)), TERMS, whole[0])


def test_a_torn_last_line_is_made_again(whole, tmp_path):
    terms = replace(TERMS, criteria=("magnitude-l1",), substitutes=("own",), epochs=0)
    first = compare(subject(), terms, tmp_path, threads=1)
    file = tmp_path / "rows.jsonl"
    content = file.read_bytes()
    file.write_bytes(content[:-20])
    assert len(load(tmp_path).rows) == 1
    assert plain(compare(subject(), terms, tmp_path, threads=1)) == plain(first)
    assert len(file.read_bytes().splitlines()) == 2


def test_a_broken_row_in_the_middle_is_not_passed_over(tmp_path):
    compare(subject(), replace(TERMS, criteria=("random",), substitutes=("own",), epochs=0), tmp_path)
    with open(tmp_path / "rows.jsonl", "a") as file:
        file.write('{"key": 3\n')
    with pytest.raises(StoreError, match="must hold one row a line"):
        load(tmp_path)


def test_only_one_at_a_time(whole):
    fcntl = pytest.importorskip("fcntl")
    with open(whole[0] / ".lock") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(InvalidInput, match="in use by another comparison"):
            compare(subject(), TERMS, whole[0])


def test_a_budget_that_cannot_be_reached_is_a_row_that_says_why(tmp_path):
    terms = replace(TERMS, criteria=("random",), flops=("0.5", "0.0001"), substitutes=("own",), epochs=0)
    found = compare(subject(), terms, tmp_path, threads=1)
    reached, failed = found.rows
    assert reached.error is None
    assert "smallest" in failed.error
    assert failed.pruned is None
    assert "## Not reached" in markdown(found)
    compare(subject(), terms, tmp_path, threads=1)
    assert len((tmp_path / "rows.jsonl").read_bytes().splitlines()) == 2


def test_what_depends_on_a_failure_fails_with_its_reason():
    choice = Choice("similarity", 0)
    wanted = [Entry("similarity", s, False, "0.5", 0, choice) for s in ("none", "linear")]

    class Refuses:
        """Does everything but choose."""

        capacity = 1

        def submit(self, task):
            self.task = task

        def next(self):
            from slimilar.comparison.engines import Failed

            return self.task, Failed("no channels") if isinstance(self.task, Choice) else None

    rows: list[Row] = []
    schedule(wanted, Refuses(), rows.append, lambda event: None, 0)
    assert [row.error for row in rows] == ["no channels", "no channels"]


# --- several at once ----------------------------------------------------------------------------------------------


@pytest.mark.slow  # the fast tests have it on the command line
def test_two_processes_end_with_the_same_rows(whole, tmp_path):
    terms = replace(TERMS, criteria=("similarity", "magnitude-l1"), flops=("0.5",))
    found = plain(compare(subject, terms, tmp_path, jobs=2, threads=1))
    assert len(found) == 4
    assert found.items() <= plain(whole[1]).items()


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed: '.[ray]'")
@pytest.mark.filterwarnings("ignore")  # of Ray itself, while it starts and stops
def test_a_cluster_ends_with_the_same_rows(whole, tmp_path, monkeypatch):
    places = [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(places))
    terms = replace(TERMS, criteria=("magnitude-l1",), flops=("0.5",))
    found = plain(compare(subject, terms, tmp_path, jobs=2, threads=1, engine="ray"))
    assert len(found) == 2
    assert found.items() <= plain(whole[1]).items()


def test_without_ray_one_is_told_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InvalidInput, match=r"needs Ray: pip install 'slimilar\[ray\]'"):
        compare(subject, TERMS, tmp_path, engine="ray")


# --- what is asked ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"criteria": ("similarty",)}, "did you mean similarity"),
        ({"criteria": ()}, "criteria must be one or more different ones"),
        ({"flops": ("half",)}, "flops must be a share"),
        (
            {"flops": ("7",)},
            r"flops must be a share from 0 to 1 .* or a number of FLOPs such as \"40M\", got '7'",
        ),
        ({"flops": ("150%",)}, "flops must be a share from 0 to 1"),
        ({"flops": ("0",)}, "flops must be a share"),
        ({"flops": ("-0.5",)}, "flops must be a share"),
        ({"flops": ("0.5", "0.5")}, "flops must be one or more different ones"),
        ({"substitutes": ("best",)}, "substitute must be one of"),
        ({"epochs": -1}, "epochs must not be negative"),
        ({"pictures": 0}, "criterion 'span' looks at pictures, got pictures 0"),
        ({"residual": "outer"}, "residual must be one of"),
    ],
)
def test_mistakes_are_found_before_any_work(change, message):
    with pytest.raises(InvalidInput, match=message):
        replace(TERMS, **change)


@pytest.mark.parametrize("budget", ["1", "100%", "0.3", "12.5%", "4k", "1e3"])
def test_shares_and_sizes_are_budgets(budget):
    assert replace(TERMS, flops=(budget,)).flops == (budget,)


def test_more_flops_than_there_are(tmp_path):
    with pytest.raises(InvalidInput, match=r"at most the \d+\.\d+ k that the network has, got '7G'"):
        compare(subject(), replace(TERMS, flops=("0.5", "7G")), tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_more_calibration_pictures_than_there_are(tmp_path):
    with pytest.raises(InvalidInput, match="at most the 300 training pictures, got 301"):
        compare(subject(), replace(TERMS, pictures=301), tmp_path / "new")
    assert not (tmp_path / "new").exists()


# --- the command line ---------------------------------------------------------------------------------------------


def run(*words: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == code, result.output
    return result.stdout


def wait_for(condition, process: subprocess.Popen[bytes], seconds: float = 500) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, "ended too early"
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.fixture(scope="module")
def demo(tmp_path_factory) -> Path:
    """The folder of a comparison on the shipped network, by the command, in one go."""
    folder = tmp_path_factory.mktemp("demo")
    run(*ON_DEMO, "-o", folder, "-q")
    return folder


@pytest.mark.timeout(600)  # seconds on a machine that has nothing else to do
@pytest.mark.parametrize("jobs", ["1", pytest.param("2", marks=pytest.mark.slow)])
def test_killed_it_goes_on_and_ends_the_same(demo, tmp_path, jobs):
    """The real program, on the shipped network and pictures, killed by force in the middle of a training."""
    folder, rows = tmp_path / "killed", tmp_path / "killed" / "rows.jsonl"
    process = subprocess.Popen(
        [*PROGRAM, *ON_DEMO, "--jobs", jobs, "-o", str(folder), "-q"], start_new_session=True
    )
    try:
        wait_for(lambda: rows.exists() and rows.read_bytes().count(b"\n") >= 1, process)
        if jobs == "1":
            wait_for(lambda: any((folder / "runs").glob("random*/log.jsonl")), process)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    written = rows.read_bytes().count(b"\n")
    goes_on = CliRunner().invoke(app, [*ON_DEMO, "-o", str(folder)])
    assert goes_on.exit_code == 0, goes_on.output
    assert f"{written} of 2 rows are there already" in goes_on.stderr
    assert plain(load(folder)) == plain(load(demo))


@pytest.mark.timeout(600)
def test_two_processes_make_the_same_rows_until_ctrl_c(demo, tmp_path):
    """The real program with two processes at work, stopped as a terminal does it: all of them at once."""
    process = subprocess.Popen(
        [*PROGRAM, *ON_DEMO, "--jobs", "2", "--seed", "0,1,2,3", "-o", str(tmp_path)],
        stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    rows = tmp_path / "rows.jsonl"
    alone = plain(load(demo))  # those of seed 0, which come first
    try:
        wait_for(lambda: rows.exists() and alone.keys() <= plain(load(tmp_path)).keys(), process)
    finally:
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"Traceback" not in errors
    assert errors.decode().strip().endswith("slimilar: stopped")
    assert alone.items() <= plain(load(tmp_path)).items()


def test_the_command_writes_table_data_and_curves(tmp_path):
    words = [*ON_DEMO, "--substitute", "own,mean", "--epochs", "0", "-o", tmp_path]
    answer = json.loads(run(*words, "--json"))
    assert len(answer["rows"]) == 4
    names = {Path(file).name for file in answer["files"]}
    assert names == {"comparison.md", "comparison.csv", "comparison.png", "comparison.svg"}
    text = (tmp_path / "comparison.md").read_text()
    assert "Command: `slimilar compare slimilar:demo --data demo --criteria magnitude-l1,random" in text
    assert "| magnitude-l1 | none (own) |" in text
    with open(tmp_path / "comparison.csv") as file:
        assert [row["criterion"] for row in csv.DictReader(file)] == ["magnitude-l1"] * 2 + ["random"] * 2
    assert (tmp_path / "comparison.png").read_bytes().startswith(b"\x89PNG")
    svg = (tmp_path / "comparison.svg").read_text()
    assert "all with substitute mean, right after pruning" in svg
    assert "after fine-tuning" not in svg
    shown = run(*words)
    assert "FLOPs budget 0.6" in shown
    assert (tmp_path / "comparison.svg").read_text() == svg


def test_settings_are_chosen_on_training_pictures_kept_out():
    words = ("slimilar:demo", None, (), None, "demo", "auto")
    found, every = Named(*words, None, None, 56)(), demo_pictures("train")
    assert (len(found.train), len(found.test)) == (200, 56)
    both = torch.cat([found.train.images, found.test.images]).flatten(1)
    assert torch.equal(both.unique(dim=0), every.images.flatten(1).unique(dim=0))
    assert len(set(found.test.labels.tolist())) == 10
    some = Named(*words, 100, 30, 56)()
    assert (len(some.train), len(some.test)) == (100, 30)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--seed", "one"], "--seed must be whole numbers"),
        (["--criteria", ","], "--criteria must name at least one"),
        (["--engine", "slurm"], "engine must be one of"),
        (["--recipe", "slow"], "recipe must be one of"),
        (["--held-out", "255"], "must leave some of the 256 training pictures"),
        (["--flops", "0.5,7"], "flops must be a share from 0 to 1"),
        (["--flops", "7G"], "flops must be at most the 89.28 M that the network has"),
    ],
)
def test_misuse_is_a_sentence(tmp_path, words, message):
    result = CliRunner().invoke(app, [*ON_DEMO, *words, "-o", str(tmp_path)])
    assert result.exit_code == 2
    assert re.search(message, result.stderr)
    assert not (tmp_path / "rows.jsonl").exists()


def test_where_nothing_comes_about_the_command_fails(demo, tmp_path):
    """Not where some rows fail: the table says so, and the others are good."""
    words = [*ON_DEMO, "--epochs", "0", "-o", str(tmp_path)]
    none = CliRunner().invoke(app, [*words, "--flops", "0.0005", "--json"])
    assert none.exit_code == 1
    said = " ".join(none.stderr.split())
    assert said.startswith(
        "slimilar: at least one of the 2 networks asked for must come about, but none did; the first"
    )
    assert "magnitude-l1 at 0.0005, because flops must be at least" in said
    assert "--residual joint" in said
    assert [row["error"] is None for row in json.loads(none.stdout)["rows"]] == [False, False]
    some = CliRunner().invoke(app, [*words, "--flops", "0.0005,0.6", "--criteria", "random"])
    assert some.exit_code == 0, some.output
    assert "random, none, 0.0005, seed 0: flops must be at least" in " ".join(some.stdout.split())


def test_criteria_are_listed_with_what_they_need():
    shown = run("criteria")
    for name in available():
        assert re.search(rf"^ {name} .* {facts(name).needs} ", shown, re.MULTILINE), name
    assert json.loads(run("criteria", "--json"))["span"]["needs"] == "pictures"


# --- drawing ------------------------------------------------------------------------------------------------------


def test_labels_are_pushed_apart_no_further_than_need_be():
    assert apart([], 1, 0, 10) == []
    assert apart([1, 4, 9], 1, 0, 10) == [1, 4, 9]
    assert apart([5, 5, 5], 1, 0, 10) == [4, 5, 6]
    assert apart([0, 0], 1, 0, 10) == [0, 1]
    assert apart([10, 10], 1, 0, 10) == [9, 10]
