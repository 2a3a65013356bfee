"""`elf runs` and `elf show` say whether a run is finished and, if not, where it stands."""

import json
from pathlib import Path

import pytest
import yaml
from judging import make_artifact
from typer.testing import CliRunner

from elf.flows.cli import app
from elf.flows.request import Request, load_request
from elf.pipeline.halts import LOG


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def elf(*arguments: str) -> str:
    done = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "80"})
    assert done.exit_code == 0, done.output
    return done.output


def begun(name: str, *steps: str) -> Request:
    """`runs/NAME` of tiny with some of its steps."""
    request = load_request("tiny", [f"name={name}"], None)
    folder = Path("runs", name)
    folder.mkdir(parents=True)
    (folder / "experiment.yaml").write_text(yaml.safe_dump(request.experiment.model_dump(mode="json")))
    for step in steps:
        stage, key = request.plan[step].place
        made = make_artifact(request.store.path(stage, key), stage, key=key)
        (folder / step).symlink_to(made.path)
    return request


def test_each_run_of_the_list_has_a_state(home: Path) -> None:
    begun("whole", "report")
    begun("half", "fetch-train")
    said = elf("runs").splitlines()
    assert said[1].split()[0] == "half"
    assert said[1].endswith("next tokenizer")
    assert said[2].rstrip().endswith("done")
    told = {run["run"]: run for run in json.loads(elf("runs", "--json"))}
    assert (told["whole"]["finished"], told["whole"]["stands_at"]) == (True, None)
    assert told["half"]["stands_at"]["step"] == "tokenizer"
    assert told["half"]["stands_at"]["state"] == "not begun"


def test_a_run_says_which_step_failed_and_why(home: Path) -> None:
    request = begun("half", "fetch-train")
    stage, key = request.plan["tokenizer"].place
    log = home / "store" / ".building" / stage / key / LOG
    log.parent.mkdir(parents=True)
    log.write_text(f"T tokenizer: tokenizer {key} begins\nT tokenizer: Failed: Nothing to read.\n")
    assert "tokenizer failed: Nothing to read." in elf("show", "half")
    assert elf("runs").splitlines()[1].endswith("tokenizer failed")
    log.write_text(f"T tokenizer: tokenizer {key} begins\n")
    assert "the same command goes on with it" in " ".join(elf("show", "half").split())


def test_a_list_does_not_wait_for_what_takes_long(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "text.txt").write_text("a line of text\n" * 100)
    name, settings = "half", ["data.train.asset.uri=path:text.txt", "name=half"]
    experiment = load_request("tiny", settings, None).experiment
    Path("runs", name).mkdir(parents=True)
    Path("runs", name, "experiment.yaml").write_text(yaml.safe_dump(experiment.model_dump(mode="json")))
    assert elf("runs").splitlines()[1].endswith("next fetch-train")
    monkeypatch.setattr("elf.flows.run_states.SOON", 1000)
    assert elf("runs").splitlines()[1].endswith("unfinished")
    assert "next comes fetch-train" in elf("show", "half")


def test_a_run_that_cannot_be_planned_is_unfinished_all_the_same(home: Path) -> None:
    begun("half", "fetch-train")
    Path("runs/half/experiment.yaml").write_text("name: half\n")
    assert elf("runs").splitlines()[1].endswith("unfinished")
    assert "what is missing cannot be told" in elf("show", "half")
