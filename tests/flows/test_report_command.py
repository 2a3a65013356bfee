"""`elf report`: where a run's page lies, a page that is made again, and one page of several runs."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from run_folder import RunFolder, made_up_metrics
from typer.testing import CliRunner

from elf.flows.cli import app
from elf.pipeline.config import load_experiment
from elf.stages.config import Experiment

SHIPPED = Path(__file__).parents[2] / "configs"
STEPS = {"train": "train", "tokens": "tokenize", "latents": "encode"}
KINDS = {"samples": "sample", "controls": "control", "scores": "evaluate"}
SDE = {
    "method": "sde", "steps": 16, "guidance": 2.0, "gamma": 1.5, "input_guidance": 1.0, "weights": "ema", "count": 64,
}  # fmt: skip


def make_run(root: Path, name: str) -> Path:
    """`runs/NAME` as a finished run leaves it, but for the report."""
    made = RunFolder(root / "store", steps=0, salt=name)
    for setting in ("sde", "ode", "sde-9"):
        made.add_texts(setting, [f"made by {name}"], made_up_metrics(None, judge=None, settings=SDE))
    folder = root / "runs" / name
    folder.mkdir(parents=True)
    for role, artifact in made.inputs.items():
        kind, _, text = role.partition("/")
        (folder / (f"{KINDS[kind]}-{text}" if text else STEPS[role])).symlink_to(artifact.path)
    settings = "sample=[{name: sde}, {name: sde-9}, {name: ode}]"
    experiment = load_experiment("tiny", Experiment, [f"name={name}", settings], SHIPPED)
    (folder / "experiment.yaml").write_text(yaml.safe_dump(experiment.model_dump(mode="json")))
    return folder


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def report(*arguments: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, ["report", *arguments])
    shown = re.sub(r"\s+", " ", done.output + (str(done.exception) if code else ""))
    assert getattr(done.exception, "code", done.exit_code) == code, shown
    return shown


def test_of_one_run_it_names_the_page_that_is_there(home: Path):
    folder = make_run(home, "one")
    (home / "page.html").write_text("the page")
    (folder / "report.html").symlink_to(home / "page.html")
    assert json.loads(report("one", "--json")) == {
        "runs": ["one"],
        "report": "runs/one/report.html",
        "made": False,
    }
    assert "Report: runs/one/report.html" in report("one")


def test_a_page_that_is_gone_is_made_again_from_the_store(home: Path):
    folder = make_run(home, "one")
    (folder / "report.html").symlink_to(home / "gone.html")
    assert json.loads(report("one", "--json"))["made"] is True
    page = folder / "report.html"
    assert "made by one" in page.read_text()
    assert not page.is_symlink()
    assert not list(folder.glob("*.png")), "no figures among the steps"
    assert json.loads(report("one", "--json"))["made"] is True, "it may be of an earlier state by now"


def test_several_runs_share_one_page(home: Path):
    make_run(home, "one")
    make_run(home, "two")
    assert "Report: runs/one+two/report.html" in report("one", "two")
    page = (home / "runs" / "one+two" / "report.html").read_text()
    assert "made by one" in page
    assert "made by two" in page
    rows = re.findall(r'<span class="name">([^<]*)</span>', page)
    assert rows == [f"{run}/{name}" for run in ("one", "two") for name in ("sde", "sde-9", "ode")], (
        "as configured"
    )
    assert "one+two" not in CliRunner().invoke(app, ["runs"]).output, "it is no run"


def test_the_page_goes_where_it_is_wanted(home: Path):
    make_run(home, "one")
    assert "Report: somewhere/else/report.html" in report("one", "--out", "somewhere/else")
    assert (home / "somewhere" / "else" / "report.html").is_file()


def test_what_cannot_be_reported_is_told_in_a_sentence(home: Path):
    (make_run(home, "one") / "train").unlink()
    assert "has no finished step train in the store" in report("one", code=1)
    assert "There is no run called 'three'" in report("one", "three", code=1)
    assert "'one' is named twice" in report("one", "one", code=2)


def test_nothing_is_computed_for_it(home: Path):
    make_run(home, "one")
    make_run(home, "two")
    code = (
        "import sys; sys.argv = ['elf', 'report', 'one', 'two']\n"
        "import elf.flows.cli as cli\n"
        "try: cli.main()\n"
        "except SystemExit as end: assert not end.code, end\n"
        "print([name for name in ('torch', 'transformers', 'prefect', 'datasets') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"
