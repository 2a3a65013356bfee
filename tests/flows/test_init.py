"""A new project: planned as it is, with texts in it, and never over what is there."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

Elf = Callable[..., subprocess.CompletedProcess[str]]


def test_a_new_project_can_be_planned_at_once(elf: Elf, tmp_path: Path) -> None:
    made = elf("init", "deep/My first: project")
    assert made.returncode == 0, made.stderr
    assert "Next: cd 'deep/My first: project' && elf run experiment.yaml" in made.stdout
    project = tmp_path / "deep" / "My first: project"
    texts = [json.loads(line) for line in (project / "data" / "texts.jsonl").read_text().splitlines()]
    assert len(texts) > 500
    assert len({each["id"] for each in texts}) > 500
    (project / "experiment.yaml").rename(tmp_path / "experiment.yaml")
    (project / "data").rename(tmp_path / "data")
    done = elf("plan", "experiment.yaml", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["experiment"] == "My-first-project"
    assert all(step["state"] == "build" for step in told["steps"])
    readme = (project / "README.md").read_text()
    assert "elf sample My-first-project" in readme
    assert (
        "`runs/My-first-project/experiment.yaml`, there as soon as a run has begun, holds every setting"
        in readme
    )
    assert "`docs/reference.md` of\nelf's own repository" in readme
    settings = (tmp_path / "experiment.yaml").read_text()
    assert "`elf plan experiment.yaml` says how many" in settings
    assert "five minutes" not in settings + readme


def test_nothing_that_is_there_is_written_over(elf: Elf, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    (tmp_path / "file").write_text("a file")
    for taken in ("mine", "file"):
        done = elf("init", taken)
        assert done.returncode == 2
        assert "there and not empty; name a new folder" in done.stderr
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.txt"]
