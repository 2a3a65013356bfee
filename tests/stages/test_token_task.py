"""Training a baseline: the loop's own promises for something without latents, and that it learns."""

import json
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import pytest
from forked_worker import Server
from judging import make_artifact
from tokens import make_tokens as make_words
from toy_training import SMALL, TRAIN, Corpus, Size, flat, launch, payload, write_job

from elf.pipeline.errors import Failed
from elf.pipeline.progress import LineProgress
from elf.pipeline.stage import StageContext
from elf.stages import train
from elf.stages.checkpoint import saved_steps
from elf.stages.compute import TrainCompute
from elf.stages.curves import read_curves, read_levels
from elf.stages.rows import TokenRows
from elf.stages.stopping import EXIT_CODE
from elf.stages.token_models import load_tokens
from elf.stages.train_settings import Train
from elf.stages.trained import load_trained, method_of
from elf.stages.training_metrics import read_metrics
from elf.stages.training_state import TrainingState

METHODS = ("autoregressive", "masked")
BLOCKS = {"depth": 1, "hidden": 16, "heads": 2}
SETTINGS: dict[str, Any] = {**TRAIN, "model": BLOCKS, "latents": {}, "heldout": {"every": 7, "rows": 8}}
NAMES = {"autoregressive": "nll", "masked": "nll_bound"}


def only_tokens(corpus: Corpus) -> Corpus:
    return Corpus({role: each for role, each in corpus.inputs.items() if role.endswith("tokens")})


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return only_tokens(Corpus.make(tmp_path_factory.mktemp("corpus"), heldout=Size(rows=9)))


@pytest.fixture(scope="module")
def worker() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


def run(corpus: Corpus, out: Path, method: str, settings: Any = None, **compute: Any) -> dict[str, Any]:
    out.mkdir(exist_ok=True)
    section = Train.model_validate_json(json.dumps({**SETTINGS, "method": method, **(settings or {})}))
    setup = TrainCompute(device="cpu", threads=1).model_copy(update=compute)
    return dict(train.run(section, StageContext(out, corpus.inputs, setup, LineProgress(every=1e9))))


@pytest.mark.parametrize("method", METHODS)
def test_what_a_run_leaves(corpus: Corpus, tmp_path: Path, method: str) -> None:
    facts = run(corpus, tmp_path, method)
    name = NAMES[method]
    assert facts["method"] == method_of(tmp_path) == method
    assert facts["steps"] == 20
    assert facts["tokens"] == 20 * 6 * 8
    assert facts[name] == facts["loss"]
    trained = load_tokens(tmp_path, "ema")
    assert trained.model.method == method
    assert facts["parameters"] == sum(each.numel() for each in trained.network.parameters())
    lines = list(read_metrics(tmp_path / "metrics.jsonl"))
    steps, held = ([line for line in lines if ("heldout_loss" in line) is there] for there in (False, True))
    assert [line["step"] for line in steps] == list(range(1, 21))
    assert [line["step"] for line in held] == [0, 7, 14, 20]
    assert all(line[name] == line["loss"] and line["positions"] == 48 for line in steps)
    for line in held:
        perplexity = name.replace("nll", "perplexity")
        assert line[f"heldout_{perplexity}"] == pytest.approx(math.exp(line[f"heldout_{name}"]))
    assert not any(word in line for line in lines for word in ("ce", "l2", "heldout_ce", "decode_positions"))
    (curve,) = read_curves(lines)
    assert curve.part == name
    assert curve.heldout.size == 4
    levels = read_levels(lines)
    assert [each.part for each in levels] == ([] if method == "autoregressive" else ["nll_bound"])
    with pytest.raises(Failed, match="does not describe a trained model"):
        load_trained(tmp_path, "ema")


@pytest.mark.parametrize("method", METHODS)
def test_what_can_be_learnt_is(tmp_path: Path, method: str) -> None:
    """Every row counts up from a token of eight: its first token has ln 8 nats, the others none."""
    corpus = only_tokens(Corpus.make(tmp_path / "corpus", replace(SMALL, rows=64, vocabulary=8)))
    rows = TokenRows.open(corpus.inputs["tokens"].path)
    counting = (np.arange(64)[:, None] + np.arange(8)) % 8
    parts: Any = rows._ids
    for index, part in enumerate(parts):
        writable = np.memmap(part.filename, "<i4", "r+", part.offset, part.shape)
        writable[:] = counting[rows._starts[index] : rows._starts[index + 1]]
        writable.flush()
    facts = run(
        corpus,
        tmp_path / "out",
        method,
        {"steps": 50, "batch": 16, "heldout": None, "model": {**BLOCKS, "depth": 2, "hidden": 32}},
    )
    print(facts["loss"] / math.log(8))
    assert facts["loss"] < 0.8 * math.log(8)


def test_runs_repeat_and_seeds_differ(corpus: Corpus, tmp_path: Path) -> None:
    for name, seed in (("one", 1), ("two", 1), ("three", 2)):
        run(corpus, tmp_path / name, "masked", {"steps": 3, "seed": seed})
    one, two, three = (payload(tmp_path / name) for name in ("one", "two", "three"))
    assert one == two
    assert one["metrics.jsonl"] != three["metrics.jsonl"]


class Killed(BaseException):
    """Stands for a signal: nothing between the loop and the test handles it."""


@pytest.mark.parametrize("method", METHODS)
def test_a_run_that_goes_on_ends_as_one_that_was_not_stopped(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    settings = {"steps": 9, "save_every": 3}
    run(corpus, tmp_path / "whole", method, settings)
    advance = TrainingState.advance

    def dying(state: TrainingState, lr: float) -> None:
        if state.step == 7:
            raise Killed
        advance(state, lr)

    with monkeypatch.context() as patch:
        patch.setattr(TrainingState, "advance", dying)
        with pytest.raises(Killed):
            run(corpus, tmp_path / "killed", method, settings)
    assert max(saved_steps(tmp_path / "killed" / "checkpoints")) == 6
    run(corpus, tmp_path / "killed", method, settings)
    assert payload(tmp_path / "killed") == payload(tmp_path / "whole")


@pytest.mark.slow
def test_kill_9_changes_nothing(corpus: Corpus, worker: Server, tmp_path: Path) -> None:
    settings = {**SETTINGS, "method": "masked", "save_every": 3}
    assert worker.run(write_job(corpus, tmp_path / "whole", settings)) == 0
    job = write_job(corpus, tmp_path / "killed", settings)
    assert worker.run(job, step=11) == -9
    assert worker.run(job, term=14) == EXIT_CODE
    assert max(saved_steps(tmp_path / "killed" / "checkpoints")) == 15
    assert worker.run(job) == 0
    assert payload(tmp_path / "killed") == payload(tmp_path / "whole")


@pytest.mark.parametrize("method", METHODS)
def test_few_rows_at_a_time_and_groups_are_the_same_step(corpus: Corpus, tmp_path: Path, method: str) -> None:
    wanted = {"steps": 4, "accumulate": 2}
    run(corpus, tmp_path / "whole", method, wanted)
    run(corpus, tmp_path / "pieces", method, wanted, batch=2)
    whole, pieces = (list(read_metrics(tmp_path / name / "metrics.jsonl")) for name in ("whole", "pieces"))
    for one, other in zip(whole, pieces, strict=True):
        assert flat(other) == pytest.approx(flat(one), rel=1e-4)


@pytest.mark.parametrize("method", METHODS)
def test_dropout_blocks_again_and_half_precision(corpus: Corpus, tmp_path: Path, method: str) -> None:
    settings = {"steps": 4, "model": {**BLOCKS, "depth": 4, "dropout": 0.2}}
    run(corpus, tmp_path / "kept", method, settings)
    run(corpus, tmp_path / "again", method, settings, checkpointing=True)
    assert payload(tmp_path / "kept") == payload(tmp_path / "again")
    half = run(corpus, tmp_path / "half", method, {**settings, "precision": "bf16"})
    assert half["loss"] == pytest.approx(
        list(read_metrics(tmp_path / "kept/metrics.jsonl"))[-1]["heldout_loss"], rel=0.3
    )


def test_pairs_count_their_targets(tmp_path: Path) -> None:
    pairs = only_tokens(Corpus.make(tmp_path / "pairs", replace(SMALL, max_source=3)))
    rows = TokenRows.open(pairs.inputs["tokens"].path)
    conditions = rows.condition_lengths(np.arange(rows.rows))
    for method, padding in (("autoregressive", "eos"), ("masked", "pad")):
        out = tmp_path / method
        run(pairs, out, method, {"steps": 4, "batch": 23, "heldout": None, "objective": {"padding": padding}})
        ends = rows.length if padding == "eos" else rows.lengths(np.arange(rows.rows))
        counted = int((ends - conditions).sum())
        assert [line["positions"] for line in read_metrics(out / "metrics.jsonl")] == [counted] * 4


def test_weights_of_others_are_refused(corpus: Corpus, tmp_path: Path) -> None:
    run(corpus, tmp_path / "out", "masked", {"steps": 1})
    card = json.loads((tmp_path / "out" / "model.json").read_text())
    card["model"]["hidden"] = 20
    (tmp_path / "out" / "model.json").write_text(json.dumps(card))
    with pytest.raises(Failed, match="hidden is 16 in the weights and 20 in the model"):
        load_tokens(tmp_path / "out", "ema")


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_of_prose_more_is_learnt_than_how_common_each_letter_is(tmp_path: Path, method: str) -> None:
    """The bar of benchmarks/baselines.py, smaller: paragraphs that ship with Python, letter by letter."""
    paragraphs = [
        " ".join("_".join(part.lower().split())) for text in topics.values() for part in text.split("\n\n")
    ]
    letters = [letter for letter, _ in Counter(" ".join(paragraphs).split()).most_common(40)]
    inputs = {
        role: make_artifact(make_words(tmp_path / role, part, words=letters, length=32), "tokenize")
        for role, part in (("tokens", paragraphs[::2]), ("heldout_tokens", paragraphs[1::40]))
    }
    settings = {"model": {"depth": 2, "hidden": 64, "heads": 2}, "batch": 16, "steps": 120}
    held = {"heldout": {"every": 1000, "rows": 64}, "optim": {"lr": 0.004, "warmup_steps": 10, "ema": 0.95}}
    facts = run(Corpus(inputs), tmp_path / "out", method, {**settings, **held})
    rows = TokenRows.open(inputs["heldout_tokens"].path)
    counts = np.unique(rows.ids(np.arange(min(64, rows.rows))), return_counts=True)[1]
    shares = counts / counts.sum()
    assert facts["heldout"]["heldout_loss"] < -(shares * np.log(shares)).sum()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_two_processes_are_one(corpus: Corpus, tmp_path: Path) -> None:
    settings = {**SETTINGS, "method": "masked", "steps": 6, "model": {**BLOCKS, "dropout": 0.0}}
    run(corpus, tmp_path / "one", "masked", {"steps": 6})
    two = {"processes": 2}
    launch(write_job(corpus, tmp_path / "two", settings, compute=two), 2)
    one, both = (list(read_metrics(tmp_path / name / "metrics.jsonl")) for name in ("one", "two"))
    for mine, theirs in zip(one, both, strict=True):
        assert flat(theirs) == pytest.approx(flat(mine), rel=1e-4)
