"""The child's side of a supervised stage: facts, failures in words, exit codes."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from toy_training import TRAIN, Corpus, flat, launch, payload, start_worker, write_job

from elf.cache.errors import Damaged
from elf.pipeline.devices import read_devices
from elf.pipeline.errors import Failed, Misconfigured
from elf.pipeline.stage import StageContext
from elf.stages import worker
from elf.stages.json_files import read_json_lines
from elf.stages.stopping import EXIT_CODE, Interrupted
from elf.stages.train_settings import Train
from elf.stages.training_metrics import read_metrics

SEEN: list[tuple[Train, StageContext]] = []
RAISED: dict[str, Exception] = {}


def entry(section: Train, context: StageContext) -> dict[str, Any]:
    """A stage that reports and does what the test asks."""
    SEEN.append((section, context))
    context.progress.note("here")
    with context.progress.bar("work", 2) as bar:
        bar.advance(2, loss=0.5)
    if RAISED:
        raise RAISED.pop("next")
    return {"answer": 42}


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setitem(sys.modules, "toy_entry", sys.modules[__name__])
    return write_job(Corpus.make(tmp_path), tmp_path / "out", TRAIN, entry="toy_entry:entry")


def test_a_job_is_what_the_stage_is_given(job: Path) -> None:
    assert worker.main(job) == 0
    section, context = SEEN[-1]
    assert section == Train.model_validate(TRAIN)
    assert context.out == job.parent.parent
    assert context.inputs["latents"].manifest.facts["width"] == 6
    assert context.compute.device == "cpu"
    assert json.loads((job.parent / "facts.json").read_text()) == {"answer": 42}
    assert [(each.kind, each.count) for each in read_devices(context.out)] == [("cpu", 1)]
    events = read_json_lines(job.parent / "events.jsonl")
    assert events[0] == {"note": "here"}
    assert [next(iter(event)) for event in events[1:]] == ["open", "advance", "advance", "close"]


@pytest.mark.parametrize(
    ("error", "code"), [(Failed("No rows."), 1), (Damaged("A shard is cut."), 1), (Misconfigured("No."), 2)]
)
def test_a_failure_is_told_in_its_words(job: Path, error: Exception, code: int) -> None:
    RAISED["next"] = error
    assert worker.main(job) == code
    assert json.loads((job.parent / "failure.json").read_text()) == {
        "text": str(error),
        "misconfigured": code == 2,
    }
    assert not (job.parent / "facts.json").exists()


def test_an_interruption_is_no_failure(job: Path) -> None:
    RAISED["next"] = Interrupted("Saved.")
    assert worker.main(job) == EXIT_CODE == 143
    assert not (job.parent / "failure.json").exists()
    assert '"Saved."' in (job.parent / "events.jsonl").read_text()


def test_other_ranks_say_and_write_nothing(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    assert worker.main(job) == 0
    assert not (job.parent / "facts.json").exists()
    assert not (job.parent / "events.jsonl").exists()


def test_a_defect_is_not_dressed_as_a_failure(job: Path) -> None:
    RAISED["next"] = KeyError("a defect")
    with pytest.raises(KeyError):
        worker.main(job)
    assert not (job.parent / "failure.json").exists()


@pytest.mark.slow
def test_accelerate_launch_changes_nothing(tmp_path: Path) -> None:
    corpus = Corpus.make(tmp_path)
    settings = {**TRAIN, "heldout": {"every": 10, "rows": 20}, "steps": 12}
    jobs = [write_job(corpus, tmp_path / name, settings) for name in ("one", "launched")]
    process = start_worker(jobs[0])
    process.communicate(timeout=280)
    assert process.returncode == 0
    launch(jobs[1], 1)
    assert payload(tmp_path / "one") == payload(tmp_path / "launched")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
def test_two_processes_train_as_one(tmp_path: Path, optimizer: str) -> None:
    """The same rows and draws, losses equal to rounding; and a run goes on with another number of processes."""
    corpus = Corpus.make(tmp_path)
    optim = {**TRAIN["optim"], "name": optimizer, "lr": 0.003}
    settings = {**TRAIN, "optim": optim, "steps": 50, "heldout": {"every": 25, "rows": 20}}
    for name, processes in (("one", 1), ("two", 2)):
        launch(write_job(corpus, tmp_path / name, settings, compute={"processes": processes}), processes)
    mixed = tmp_path / "mixed"
    launch(write_job(corpus, mixed, {**settings, "steps": 25}, compute={"processes": 2}), 2)
    launch(write_job(corpus, mixed, settings), 1)
    one, two, three = (
        list(read_metrics(tmp_path / name / "metrics.jsonl")) for name in ("one", "two", "mixed")
    )
    for line, other in zip(one, two, strict=True):
        assert line.keys() == other.keys()
        for name, value in line.items():
            assert other[name] == pytest.approx(value, rel=1e-5), f"step {line['step']} {name}"
    for line, other in zip(one, three, strict=True):
        assert flat(other) == pytest.approx(flat(line), rel=1e-5)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_learning_rate_of_a_step_is_the_same_on_any_number_of_processes(tmp_path: Path) -> None:
    """100 steps with 10 of warm-up in four groups, on two processes, and on two up to step 37 and then on one, two
    rows at a time."""
    corpus = Corpus.make(tmp_path)
    optim = {**TRAIN["optim"], "lr": 0.001, "warmup_steps": 10}
    settings = {**TRAIN, "steps": 100, "optim": optim, "batch": 8, "accumulate": 4}
    launch(write_job(corpus, tmp_path / "two", settings, compute={"processes": 2}), 2)
    mixed = tmp_path / "mixed"
    launch(write_job(corpus, mixed, {**settings, "steps": 37}, compute={"processes": 2, "batch": 1}), 2)
    launch(write_job(corpus, mixed, settings, compute={"batch": 2}), 1)
    wanted = [0.0001 * min(step, 10) for step in range(100)]
    for name in ("two", "mixed"):
        rates = [line["lr"] for line in read_metrics(tmp_path / name / "metrics.jsonl")]
        assert rates == pytest.approx(wanted), name
