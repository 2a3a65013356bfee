"""Samples while a model learns: the same noise each time, and no trace of them in what is trained."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from judging import make_artifact
from tokens import make_tokens
from toy_training import TRAIN, Corpus, Size, launch, make_latents, payload, write_job

from elf.pipeline.errors import Failed
from elf.pipeline.progress import LineProgress
from elf.pipeline.stage import Compute, StageContext
from elf.stages import sample, train
from elf.stages.compute import TrainCompute
from elf.stages.config import Sample
from elf.stages.glimpses import LETTERS, shorten
from elf.stages.sample import Sampling
from elf.stages.texts import read_texts
from elf.stages.train_settings import Train

WORDS = [f"word{i}" for i in range(30)]
TEXT = [" ".join(WORDS[(start * 7 + i) % 30] for i in range(20)) for start in range(12)]
PAIRS = [(f"word{i} word{i + 1} word{i + 2}", f"word{i + 9} word{i}") for i in range(12)]
SAMPLES = {"every": 4, "count": 3, "steps": 4}
SETTINGS = {**TRAIN, "steps": 10, "save_every": 4}


def make(folder: Path, documents: list[Any], **tokens: Any) -> Corpus:
    """Inputs whose tokens have a tokenizer beside them, held-out ones too."""
    inputs = {}
    for prefix in ("", "heldout_"):
        path = make_tokens(folder / f"{prefix}tokens", documents, words=WORDS, length=8, **tokens)
        rows = json.loads((path / "counts.json").read_text())["rows"]
        inputs[f"{prefix}tokens"] = make_artifact(path, "tokenize", facts={"rows": rows})
        size = Size(rows=rows, length=8, width=6, vocabulary=33, **tokens)
        inputs[f"{prefix}latents"] = make_latents(
            folder / f"{prefix}latents", inputs[f"{prefix}tokens"], size
        )
    return Corpus(inputs)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return make(tmp_path_factory.mktemp("text"), TEXT)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return make(tmp_path_factory.mktemp("pairs"), PAIRS, max_source=3)


class Notes(LineProgress):
    """Keeps what is said."""

    def __init__(self) -> None:
        super().__init__(every=1e9)
        self.said: list[str] = []

    def note(self, line: str) -> None:
        self.said.append(line)


def run(corpus: Corpus, out: Path, settings: dict[str, Any] | None = None, **compute: Any) -> list[str]:
    out.mkdir(exist_ok=True)
    notes = Notes()
    section = Train.model_validate_json(json.dumps({**SETTINGS, **(settings or {})}))
    setup = TrainCompute.model_validate({"device": "cpu", "threads": 1, **compute})
    train.run(section, StageContext(out, corpus.inputs, setup, notes))
    return notes.said


@pytest.mark.parametrize("kind", ["text", "pairs"])
def test_looking_changes_nothing_that_is_trained(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    corpus: Corpus = request.getfixturevalue(kind)
    dropout = {"model": {**TRAIN["model"], "depth": 4, "dropout": 0.2}}
    before = torch.random.get_rng_state()
    run(corpus, tmp_path / "blind", dropout)
    said = run(corpus, tmp_path / "seeing", dropout, samples=SAMPLES)
    assert payload(tmp_path / "blind") == payload(tmp_path / "seeing")
    assert torch.equal(torch.random.get_rng_state(), before)
    looks = tmp_path / "seeing" / "aux" / "samples"
    assert sorted(path.name for path in looks.iterdir()) == ["step_10.jsonl", "step_4.jsonl", "step_8.jsonl"]
    first, last = (read_texts(looks / f"step_{step}.jsonl") for step in (4, 10))
    assert [(each.seed, each.id) for each in first] == [(TRAIN["seed"], number) for number in range(3)]
    assert [each.ids for each in first] != [each.ids for each in last], "it learned something"
    assert all((each.source is not None) == (kind == "pairs") for each in first)
    assert sum(line.startswith("4: ") for line in said) == 2


def test_a_run_that_goes_on_sees_the_same(text: Corpus, tmp_path: Path) -> None:
    run(text, tmp_path / "whole", samples=SAMPLES)
    run(text, tmp_path / "two", {"steps": 4}, samples=SAMPLES)
    run(text, tmp_path / "two", samples=SAMPLES)
    for step in (4, 8, 10):
        one, two = (tmp_path / name / f"aux/samples/step_{step}.jsonl" for name in ("whole", "two"))
        assert one.read_bytes() == two.read_bytes()


def test_what_is_seen_is_what_the_sample_stage_makes_of_the_weights(text: Corpus, tmp_path: Path) -> None:
    run(text, tmp_path / "train", samples=SAMPLES)
    tokens = text.inputs["tokens"]
    inputs = {"tokens": tokens, "model": make_artifact(tmp_path / "train", "train")}
    setting = Sample(name="x", method="ode", steps=4, count=3, seeds=(TRAIN["seed"],))
    (tmp_path / "sample").mkdir()
    compute = Compute(device="cpu", threads=1)
    sample.run(setting, StageContext(tmp_path / "sample", inputs, compute, Notes()))
    seen = read_texts(tmp_path / "train/aux/samples/step_10.jsonl")
    assert read_texts(tmp_path / "sample/samples.jsonl") == seen


def test_weights_that_give_nothing_stop_no_training(
    text: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise Failed("numbers that are not finite")

    monkeypatch.setattr(Sampling, "ids", refuse)
    said = run(text, tmp_path, samples=SAMPLES)
    assert sum("No samples after step" in line for line in said) == 3
    assert not (tmp_path / "aux" / "samples").exists()


def test_a_tokenizer_that_is_not_there_is_missed_before_training(tmp_path: Path) -> None:
    corpus = Corpus.make(tmp_path / "corpus")
    with pytest.raises(Failed, match="tokenizer"):
        run(corpus, tmp_path / "out", samples=SAMPLES)
    assert not (tmp_path / "out" / "metrics.jsonl").exists()


def test_a_text_fits_a_line() -> None:
    assert shorten(" a\n b ") == "a b"
    assert shorten("  ") == "(empty)"
    assert shorten("x" * 200) == "x" * LETTERS + "…"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_processes_see_and_train_the_same(pairs: Corpus, tmp_path: Path) -> None:
    compute = {"processes": 2}
    for name, more in (("blind", {}), ("seeing", {"samples": SAMPLES})):
        launch(write_job(pairs, tmp_path / name, SETTINGS, compute={**compute, **more}), 2)
    assert payload(tmp_path / "blind") == payload(tmp_path / "seeing")
    run(pairs, tmp_path / "one", samples=SAMPLES)
    one, two = (tmp_path / name / "aux/samples/step_4.jsonl" for name in ("one", "seeing"))
    assert read_texts(one) == read_texts(two)
