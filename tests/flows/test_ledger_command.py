"""`elf ledger`: one run or several, in 80 columns and as JSON."""

import json
from pathlib import Path
from typing import Any

import pytest
from costly import Costly, a_step
from typer.testing import CliRunner

from elf.flows.cli import app
from elf.stages.model.config import SamplerConfig


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    costly = Costly(tmp_path / "store")
    costly.tokens()
    costly.encoder()
    costly.latents()
    costly.train([a_step(8, 24)], steps=1)
    costly.sample(SamplerConfig(method="ode", steps=3))
    costly.scores([5, 3])
    steps = {"tokenize": "tokens", "encode": "latents", "train": "train"}
    make_run(costly, "one", steps | {"sample-ode": "sample"})
    make_run(costly, "two", steps | {"sample-ode": "sample", "evaluate-ode": "scores"})
    make_run(costly, "none", {})
    return tmp_path


def make_run(costly: Costly, name: str, steps: dict[str, str]) -> None:
    folder = Path("runs", name)
    folder.mkdir(parents=True)
    (folder / "experiment.yaml").write_text("name: any\n")
    for step, made in steps.items():
        (folder / step).symlink_to(costly.made[made].path)


def ledger(*arguments: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, ["ledger", *arguments], env={"COLUMNS": "80"})
    assert getattr(done.exception, "code", done.exit_code) == code, done.output
    return done.output


def told(*arguments: str) -> Any:
    return json.loads(ledger(*arguments, "--json"))


def test_a_run_with_all_it_rests_on(home: Path) -> None:
    said = ledger("one")
    lines = said.splitlines()
    assert max(map(len, lines)) <= 80
    steps = [each.split()[0] for each in lines[1 : lines.index("")]]
    assert steps == [
        "fetch",
        "tokenize",
        "encode",
        "train",
        "gradient",
        "self-condition,",
        "sample-ode",
        "all",
    ]
    assert "self-condition, ~2 rows" in said
    assert "optimisers" in said


def test_several_runs_share_what_they_share(home: Path) -> None:
    one, two, both = told("one"), told("two"), told("one", "two")
    assert both["runs"] == ["one", "two"]
    assert both["flops"] == two["flops"] > one["flops"]
    keys = [each["key"] for each in both["lines"]]
    assert len(keys) == len(set(keys))
    assert "one/train" in ledger("one", "two")


def test_a_real_run_tells_all_of_it(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(whole)
    found = told("tiny")
    assert found["flops_untold"] == []
    assert found["device_seconds"].keys() == {"cpu"}
    assert found["trained_tokens"] == 24 * 8 * 32
    lines = {each["name"]: each for each in found["lines"]}
    assert {each["stage"] for each in lines.values() if each["devices"] is None} == set()
    assert all(lines[name]["devices"]["name"] for name in ("pretrain", "encode", "train", "sample-ode"))
    assert {name for name, each in lines.items() if not each["exact"]} == {"train"}
    assert [part["name"] for part in lines["sample-sde"]["parts"]] == ["sampling", "trajectories"]


def test_a_run_of_which_nothing_is_left_is_refused(home: Path) -> None:
    assert "there is nothing to tell of" in ledger("none", code=1)
    assert "no run called 'nil'" in ledger("nil", code=1)
