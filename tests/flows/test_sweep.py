"""`elf sweep`: variants planned together, what they share built once, failures told, one page of all."""

import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from commands import half_made, start, wait_for_the_end, wait_until
from typer.testing import CliRunner

from elf.flows.cli import app
from elf.flows.request import load_request
from elf.flows.sweeping import load_sweep
from elf.flows.told_outcomes import VARIABLE, read_outcomes, telling_outcomes, together
from elf.pipeline.errors import Misconfigured
from elf.pipeline.runner import Outcome
from elf.stages import assets
from elf.stages.assets import digest_path
from elf.stages.estimate import _Cost  # pyright: ignore[reportPrivateUsage]

OVER = "sweep.over={train.model.bottleneck: [8, 16, null], train.optim.lr: [0.004, 0.002]}"
QUICK = ("--set", "train.steps=3", "train.heldout=null", "pretrain.steps=2", "evaluate.controls=[]")
QUICK = (*QUICK, "sample=[{name: ode, method: ode, steps: 2, guidance: 1.0, gamma: 0.0, count: 4}]")
"""Settings with which a variant takes seconds."""


class Narrating:
    """A watcher that hears all and says nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_what_variants_share_is_priced_once(home: Path) -> None:
    done = CliRunner().invoke(app, ["sweep", "tiny", "--set", OVER, "--plan", "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    shared, *own = told["rows"]
    assert shared["name"] is None
    assert [row["name"] for row in own] == [
        f"bottleneck={b}-lr={lr}" for b in ("8", "16", "null") for lr in ("0.004", "0.002")
    ]
    assert {row["steps"] for row in own} == {6}, "train, two samplings, their scores, a report"
    assert shared["builds"] == shared["steps"]
    assert told["builds"] == shared["builds"] + 36
    assert told["seconds"] < told["seconds_without_sharing"]
    assert not (home / "store").exists()
    assert not (home / "runs").exists()


def test_a_plan_until_a_stage_is_the_price_of_what_would_be_built(home: Path) -> None:
    plan = ["sweep", "tiny", "--set", OVER, "--plan", "--json"]
    told = json.loads(CliRunner().invoke(app, [*plan, "--until", "encode"]).stdout)
    assert [row["steps"] for row in told["rows"][1:]] == [0] * 6
    assert told["builds"] == told["rows"][0]["builds"] == 7
    assert told["seconds"] < json.loads(CliRunner().invoke(app, plan).stdout)["seconds"]


@pytest.mark.parametrize("more", [(), ("--plan",), ("--json",)])
def test_a_stage_that_there_is_not_is_refused_before_anything_starts(
    home: Path, more: tuple[str, ...]
) -> None:
    done = CliRunner().invoke(app, ["sweep", "tiny", "--set", OVER, "--until", "nosuch", *more])
    assert done.exit_code != 0
    assert "There is no stage or step 'nosuch'" in done.output
    assert list(home.iterdir()) == []


def test_what_is_not_known_is_no_part_of_a_bare_sum(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elf.stages.estimate.Estimator.train", lambda *_: _Cost())
    plan = ["sweep", "tiny", "--set", OVER, "--plan"]
    told = json.loads(CliRunner().invoke(app, [*plan, "--json"]).stdout)
    assert told["seconds"] is None
    assert told["seconds_at_least"] > 0
    assert told["seconds_unknown"] == told["bytes_unknown"] == ["train"]
    said = " ".join(CliRunner().invoke(app, plan).output.split())
    assert "Time: more than ~" in said
    assert "; the time of 6 steps (train) is not known" in said
    one = " ".join(CliRunner().invoke(app, ["plan", "tiny"]).output.split())
    assert "the time of train is not known" in one
    assert "the size of train is not known" in one


def test_who_built_a_step_is_told_by_those_that_ran(home: Path) -> None:
    """Another sweep may put a step there meanwhile, so that what is in the store now says nothing."""
    first, second, *_ = load_request("tiny", QUICK[1:], None).plan
    nothing: Any = None
    monkey: Any = Narrating()
    assert telling_outcomes(monkey) is monkey
    path = home / "told"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, str(path))
        telling = telling_outcomes(monkey)
    telling.on_done(first, Outcome(first, nothing, False, 1.0))
    telling.on_hit(second, nothing)
    path.write_text(path.read_text() + '["cut')
    assert read_outcomes(path) == {first.key: "built", second.key: "reused"}
    assert together([{"a": "reused"}, {"a": "built"}, {"a": "pulled"}]) == {"a": "built"}


def test_the_plan_fits_a_terminal(home: Path) -> None:
    done = CliRunner().invoke(app, ["sweep", "tiny", "--set", OVER, "--plan"], env={"COLUMNS": "80"})
    assert "(shared)" in done.output
    assert "6 variants" in done.output
    assert max(map(len, done.output.splitlines())) <= 80


def test_variants_are_looked_at_before_anything_runs(home: Path) -> None:
    for settings, words in (
        (
            "sweep.over={train.optim.lr: [0.1, -1]}",
            r"train\.optim\.lr.*That is the variant lr=-1 of the sweep",
        ),
        ("sweep.over={train.optim.rl: [0.1]}", r"has no `rl`; did you mean `lr`"),
        ("sweep.over={train.keep: [1, 2]}", r"keep=1 and keep=2 of the sweep come to the same keys"),
        ("sweep.variants={a/b: {}}", r"may not .*hold a slash"),
        ("train.seed=1", r"has no section `sweep`"),
    ):
        with pytest.raises(Misconfigured, match=words):
            load_sweep("tiny", [settings], None)
    assert not (home / "store").exists()


def test_whatever_a_value_is_made_of_is_in_the_name_of_its_run(home: Path) -> None:
    over = 'sweep.over={report.title: ["c #1: \U0001f600", "c #2"], train.seed: [1]}'
    with pytest.raises(Misconfigured, match="come to the same keys"):
        load_sweep("tiny", [over], None)
    sweep = load_sweep("tiny", ['sweep.over={tokenize.end_token: ["a #1: \U0001f600", "b #2"]}'], None)
    assert [member.run for member in sweep] == ["tiny-end_token=a #1: \U0001f600", "tiny-end_token=b #2"]


def test_seeds_of_one_configuration_share_all_but_training(home: Path) -> None:
    sweep = load_sweep("tiny", ["sweep.over={train.seed: [0, 1]}"], None)
    shared = {planned.step.spec.name for key, planned in sweep.distinct().items() if key in sweep.shared()}
    assert shared == {"fetch", "tokenizer", "tokenize", "pretrain", "encode", "control", "evaluate"}
    assert [member.run for member in sweep] == ["tiny-seed=0", "tiny-seed=1"]


def test_a_local_corpus_is_read_once_for_all_variants(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = home / "own.txt"
    corpus.write_text("one\n\ntwo\n\nthree\n")
    read: list[Path] = []

    def counted(path: Path) -> str:
        read.append(path)
        return digest_path(path)

    monkeypatch.setattr(assets, "digest_path", counted)
    sweep = load_sweep(
        "tiny", [f"data.train.asset={{uri: 'path:{corpus}'}}", "sweep.over={train.seed: [0, 1, 2]}"], None
    )
    assert len(sweep) == 3
    assert read == [corpus]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_six_variants_build_one_tokenize_and_one_encode(home: Path) -> None:
    process = start(home, "sweep", "tiny", *QUICK, OVER, "--jobs", "2")
    out, err = process.communicate(timeout=800)
    assert process.returncode == 0, out + err
    logs = sorted((home / "runs" / "tiny-sweep").glob("*.log"))
    built = re.findall(r"^built +(\S+)", "".join(log.read_text() for log in logs), re.MULTILINE)
    for step in ("tokenize", "tokenize-validation", "pretrain", "encode"):
        assert built.count(step) == 1, step
    assert built.count("train") == 6
    assert len(list((home / "store" / "encode").iterdir())) == 1
    assert not half_made(home / "store")
    page = (home / "runs" / "tiny-sweep" / "report.html").read_text()
    assert all(f"tiny-bottleneck={b}-lr={lr}" in page for b in (8, 16, "null") for lr in (0.004, 0.002))
    again = start(home, "sweep", "tiny", *QUICK, OVER, "--jobs", "3")
    out, err = again.communicate(timeout=300)
    assert again.returncode == 0, err
    assert re.search(r"^\(shared\) +\d+ +0 ", out, re.MULTILINE), out


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_variant_that_fails_stops_no_other(home: Path) -> None:
    variants = (
        "sweep.variants={good: {train.seed: 1}, bad: {train.latents.std: 0.0001}, fine: {train.seed: 2}}"
    )
    process = start(home, "sweep", "tiny", *QUICK, variants)
    out, err = process.communicate(timeout=500)
    assert process.returncode == 1
    assert "1 of the 3 variants did not finish: bad" in " ".join(err.split())
    assert re.search(r"^bad +ended with exit code 1", out, re.MULTILINE), out
    page = (home / "runs" / "tiny-sweep" / "report.html").read_text()
    assert "tiny-good" in page
    assert "tiny-fine" in page
    assert "tiny-bad" not in page


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_variants_end_with_their_sweep(home: Path, number: signal.Signals) -> None:
    process = start(home, "sweep", "tiny", *QUICK, OVER, "train.steps=100000", "--jobs", "2")
    training = home / "store" / ".building" / "train"
    wait_until(lambda: len(list(training.glob("*/metrics.jsonl"))) == 2, 400, "two trainings")
    process.send_signal(number)
    process.communicate(timeout=100)
    wait_for_the_end(home, 100)
    assert process.returncode == (143 if number == signal.SIGTERM else -signal.SIGKILL)
