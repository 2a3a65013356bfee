"""Two processes of one run: one dies, one has a row that is no number, and others take over from both."""

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from toy_training import TRAIN, Corpus, flat, launch, payload, poison, write_job

from elf.stages.checkpoint import saved_steps
from elf.stages.trained import load_trained
from elf.stages.training_metrics import read_metrics

SUPPORT = str(Path(__file__).resolve().parent.parent / "support")
TWO = {"processes": 2}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    return Corpus.make(tmp_path / "corpus")


def steps_saved(out: Path) -> list[int]:
    return sorted(saved_steps(out / "checkpoints"))


def test_whichever_process_is_killed_nothing_changes(corpus: Corpus, tmp_path: Path) -> None:
    settings = {**TRAIN, "save_every": 3}
    launch(write_job(corpus, tmp_path / "whole", settings, compute=TWO), 2)
    killed = tmp_path / "killed"
    dying = write_job(corpus, killed, settings, compute=TWO, entry="dying_rank:run")
    for dies in ("1:8", "0:13"):
        launch(dying, 2, code=1, PYTHONPATH=SUPPORT, DIES=dies)
        assert not (killed / "aux" / "facts.json").exists()
    assert max(steps_saved(killed)) in (9, 12)
    launch(write_job(corpus, killed, settings, compute=TWO), 2)
    assert payload(killed) == payload(tmp_path / "whole")


def test_a_row_that_is_not_finite_is_refused_on_both_in_the_same_words(
    corpus: Corpus, tmp_path: Path
) -> None:
    settings = {**TRAIN, "save_every": 1}
    out = tmp_path / "out"
    launch(write_job(corpus, out, {**settings, "steps": 2}, compute=TWO), 2)
    row = 11
    poison(corpus, row)
    said = launch(write_job(corpus, out, settings, compute=TWO), 2, code=1)
    told: str = json.loads((out / "aux" / "failure.json").read_text())["text"]
    assert f"the step was refused and changed nothing. It comes from rows {row}. " in told
    assert said.count(told) == 2
    last = steps_saved(out)[-1]
    assert f"The loss of step {last + 1} is " in told
    lines = [line["step"] for line in read_metrics(out / "metrics.jsonl")]
    assert lines == list(range(1, last + 1)), "nothing is said of a step that was refused"


def test_what_two_compiled_processes_saved_is_gone_on_from_by_one_plain_one(
    corpus: Corpus, tmp_path: Path
) -> None:
    """The same names, the same losses to rounding, and weights that sampling takes; then by two plain ones."""
    settings = {**TRAIN, "optim": {**TRAIN["optim"], "lr": 0.003}, "steps": 12}
    launch(write_job(corpus, tmp_path / "alone", settings), 1)
    out = tmp_path / "out"
    ways: list[dict[str, Any]] = [{"processes": 2, "compile": True}, {"processes": 1}, {"processes": 2}]
    for number, compute in enumerate(ways, start=1):
        job = write_job(corpus, out, {**settings, "steps": 4 * number}, compute=compute)
        launch(job, compute["processes"])
        assert steps_saved(out) == [4 * number]
        assert load_trained(out, "ema").network
    for part in ("model", "ema", "optimizer"):
        alone, mixed = (
            sorted(load_file(run / "checkpoints" / "step_12" / f"{part}.safetensors"))
            for run in (tmp_path / "alone", out)
        )
        assert alone == mixed
    lines, wanted = (list(read_metrics(run / "metrics.jsonl")) for run in (out, tmp_path / "alone"))
    for line, other in zip(lines, wanted, strict=True):
        assert flat(line) == pytest.approx(flat(other), rel=1e-3)
