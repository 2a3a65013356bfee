"""The training run: exact whatever happens to it, and refusing what it cannot train on."""

import json
import math
import random
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from damage import HARM
from forked_worker import Server
from toy_training import (
    SMALL,
    TRAIN,
    Corpus,
    Size,
    make_latents,
    make_tokens,
    payload,
    poison,
    write_job,
)

from elf.cache.errors import Damaged
from elf.cache.rows import Rows
from elf.pipeline.errors import Failed, Misconfigured
from elf.pipeline.progress import LineProgress
from elf.pipeline.stage import Compute, StageContext
from elf.stages import train, training
from elf.stages.checkpoint import saved_steps
from elf.stages.feeding import Recipe
from elf.stages.model.config import ObjectiveConfig
from elf.stages.stopping import EXIT_CODE
from elf.stages.train_settings import Train
from elf.stages.training_inputs import open_splits
from elf.stages.training_metrics import read_metrics

HELDOUT = {"heldout": {"every": 7, "rows": 8}}
PAIRS = replace(SMALL, max_source=3)
VARIANTS: dict[str, dict[str, Any]] = {
    "muon": {},
    "adamw": {
        "optim": {
            "name": "adamw",
            "lr": 0.01,
            "weight_decay": 0.1,
            "schedule": "cosine",
            "warmup_epochs": 0.5,
        }
    },
    "dropout": {"model": {**TRAIN["model"], "depth": 4, "dropout": 0.2}},
    "bf16": {"precision": "bf16"},
    "plain": {"objective": {"self_condition": 0.0}},
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return Corpus.make(tmp_path_factory.mktemp("corpus"), heldout=Size(rows=9))


@pytest.fixture(scope="module")
def worker() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


def run(corpus: Corpus, out: Path, settings: dict[str, Any] | None = None, **compute: Any) -> dict[str, Any]:
    """A run in this process."""
    out.mkdir(exist_ok=True)
    section = Train.model_validate_json(json.dumps({**TRAIN, **(settings or {})}))
    setup = Compute(device="cpu", threads=1).model_copy(update=compute)
    return dict(train.run(section, StageContext(out, corpus.inputs, setup, LineProgress(every=1e9))))


def steps_saved(out: Path) -> list[str]:
    return [f"step_{step}" for step in sorted(saved_steps(out / "checkpoints"))]


def test_what_a_run_leaves(corpus: Corpus, tmp_path: Path) -> None:
    facts = run(corpus, tmp_path, HELDOUT)
    assert sorted(payload(tmp_path)) == sorted(
        ["metrics.jsonl", "model.json"]
        + [
            f"checkpoints/step_20/{name}"
            for name in ("model.safetensors", "ema.safetensors", "optimizer.safetensors")
        ]
        + ["checkpoints/step_20/state.json", "checkpoints/step_20/COMPLETE"]
    )
    assert facts["steps"] == 20
    assert facts["tokens"] == 20 * 6 * 8
    assert facts["epochs"] == 120 / 23
    said = corpus.inputs["latents"].manifest.facts  # TRAIN.latents.std is measured
    assert facts["scale"] == {"mean": said["mean"], "std": said["std"]}
    assert facts["heldout"]["step"] == 20
    lines = list(read_metrics(tmp_path / "metrics.jsonl"))
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, 21))
    assert [line["step"] for line in lines if "heldout_loss" in line] == [0, 7, 14, 20]
    assert [line["lr"] for line in lines if "loss" in line] == pytest.approx(
        [0, 0.01 / 3, 0.02 / 3] + [0.01] * 17
    )
    assert all(line["decode_positions"] + line["denoise_positions"] == 48 for line in lines if "loss" in line)
    for line in lines:
        held, heldout = ("heldout_", True) if "heldout_loss" in line else ("", False)
        for branch, error in (("decode", "ce"), ("denoise", "l2")):
            positions, sums = line[f"{held}{branch}_positions_by_t"], line[f"{held}{error}_sum_by_t"]
            assert (len(positions), len(sums)) == (10, 10)
            assert sum(sums) / max(sum(positions), 1) == pytest.approx(line[f"{held}{error}"])
            assert all(count or not total for count, total in zip(positions, sums, strict=True))
            assert heldout or sum(positions) == line[f"{branch}_positions"]
    assert not any(name.endswith("_by_t") for name in facts["heldout"])
    times = list(read_metrics(tmp_path / "aux" / "timing.jsonl"))
    assert [line["step"] for line in times] == list(range(1, 21))
    assert all(line["tokens_per_s"] > 0 and line["mfu"] > 0 and line["beside"] >= 0 for line in times)


def test_it_learns(corpus: Corpus, tmp_path: Path) -> None:
    run(
        corpus,
        tmp_path,
        {"steps": 90, "optim": {"lr": 0.02}, "objective": {"decode_noise_scale": 0.5, "noise_scale": 0.3}},
    )
    lines = list(read_metrics(tmp_path / "metrics.jsonl"))
    first, last = lines[:30], lines[-30:]
    for name in ("ce", "l2"):
        kind = "decode_positions" if name == "ce" else "denoise_positions"
        before, after = (
            sum(line[name] * line[kind] for line in part) / sum(line[kind] for line in part)
            for part in (first, last)
        )
        assert after < 0.8 * before


def test_runs_repeat_and_seeds_differ(corpus: Corpus, tmp_path: Path) -> None:
    for name, seed in (("one", 1), ("two", 1), ("three", 2)):
        run(corpus, tmp_path / name, {"steps": 3, "seed": seed})
    one, two, three = (payload(tmp_path / name) for name in ("one", "two", "three"))
    assert one == two
    assert one["metrics.jsonl"] != three["metrics.jsonl"]


def test_how_often_it_is_saved_changes_nothing(corpus: Corpus, tmp_path: Path) -> None:
    run(corpus, tmp_path / "often", {"save_every": 1, "keep": 3})
    run(corpus, tmp_path / "never", {"save_every": 1000})
    assert payload(tmp_path / "often") == payload(tmp_path / "never")


def kill_and_compare(
    corpus: Corpus, worker: Server, folder: Path, settings: dict[str, Any], kills: list[Any]
) -> None:
    """An undisturbed run against one that dies at each of ``kills`` in turn; {} lets it finish."""
    assert worker.run(write_job(corpus, folder / "whole", settings)) == 0
    job = write_job(corpus, folder / "killed", settings)
    codes = [worker.run(job, **kill) for kill in kills]
    assert set(codes) <= {0, -9}
    assert codes.count(-9) > len(codes) / 2, "the moments lie within a run"
    assert worker.run(job) == 0
    assert payload(folder / "killed") == payload(folder / "whole")
    whole, killed = (list(read_metrics(folder / name / "aux" / "fed.jsonl")) for name in ("whole", "killed"))
    assert [line["step"] for line in whole] == list(range(settings["steps"]))
    assert all(line == whole[line["step"]] for line in killed), "rows and noise of a step, however often made"
    assert {line["step"] for line in killed} == set(range(settings["steps"]))
    taken = [row for line in whole for row in line["rows"]]
    assert all(
        sorted(taken[start : start + 23]) == list(range(23)) for start in range(0, len(taken) - 22, 23)
    )


# 23 rows, 6 a step: the first epoch ends within step 3 (from 0), the second within step 7.
STEPS = (0, 1, 3, 4, 5, 5, 9, 19)


def test_kill_9_at_steps_changes_nothing(corpus: Corpus, worker: Server, tmp_path: Path) -> None:
    settings = {**TRAIN, **HELDOUT, "save_every": 3}
    kill_and_compare(corpus, worker, tmp_path, settings, [{"step": step} for step in (0, 1, 3, 4, 5, 5)])


def test_kill_9_while_saving_changes_nothing(corpus: Corpus, worker: Server, tmp_path: Path) -> None:
    moments = random.Random(7)
    kills = [{"file": moments.randrange(20, 150)} for _ in range(3)]
    kill_and_compare(corpus, worker, tmp_path, {**TRAIN, "save_every": 2, "keep": 1}, kills)


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_kill_9_changes_nothing_in_any_variant(
    corpus: Corpus, worker: Server, tmp_path: Path, variant: str
) -> None:
    settings = {**TRAIN, **HELDOUT, "save_every": 3, **VARIANTS[variant]}
    kill_and_compare(corpus, worker, tmp_path, settings, [{"step": step} for step in STEPS])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_kill_9_at_twenty_moments_of_saving_changes_nothing(
    corpus: Corpus, worker: Server, tmp_path: Path, seed: int
) -> None:
    moments = random.Random(seed)
    kills = [{"file": moments.randrange(1, 150)} for _ in range(5)]
    kill_and_compare(corpus, worker, tmp_path, {**TRAIN, "save_every": 2, "keep": 1}, kills)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_kill_9_in_a_run_of_200_steps_changes_no_bit(
    corpus: Corpus, worker: Server, tmp_path: Path, seed: int
) -> None:
    """Before steps, and at touches of files: while it begins, goes on, saves or rotates."""
    moments = random.Random(seed)
    kills: list[dict[str, int]] = []
    for start in range(0, 200, 50):
        # The touches of one save, or of two, end before the next of the steps.
        kills += [{"step": start + moments.randrange(20, 50)}, {"file": moments.randrange(1, 25)}]
    settings = {**TRAIN, **HELDOUT, "steps": 200, "save_every": moments.choice((7, 10)), "keep": 2}
    kill_and_compare(corpus, worker, tmp_path, settings, kills)


def test_sigterm_saves_and_can_be_gone_on_from(corpus: Corpus, worker: Server, tmp_path: Path) -> None:
    settings = {**TRAIN, "save_every": 1000}
    assert worker.run(write_job(corpus, tmp_path / "whole", settings)) == 0
    out = tmp_path / "stopped"
    job = write_job(corpus, out, settings)
    for step in (4, 11):
        assert worker.run(job, term=step) == EXIT_CODE
        assert steps_saved(out)[-1] == f"step_{step + 1}", "at the end of that step, the next is given up"
        assert not (out / "aux" / "facts.json").exists()
    assert "Interrupted, and saved after step" in (out / "aux" / "events.jsonl").read_text()
    assert worker.run(job, term=19) == 0, "there is nothing left to stop after the last step"
    assert payload(out) == payload(tmp_path / "whole")


def test_sigterm_amid_a_step_gives_it_up(corpus: Corpus, worker: Server, tmp_path: Path) -> None:
    """A step may take longer than those who stop a run will wait."""
    settings = {**TRAIN, "save_every": 10}
    assert worker.run(write_job(corpus, tmp_path / "whole", settings)) == 0
    out = tmp_path / "stopped"
    job = write_job(corpus, out, settings)
    for begun, (amid, saved) in {0: (1, []), 1: (8, ["step_7"]), 2: (4, ["step_7", "step_10"])}.items():
        assert worker.run(job, forward=amid) == EXIT_CODE, f"interruption {begun}"
        assert steps_saved(out) == saved
    said = (out / "aux" / "events.jsonl").read_text()
    assert "before there was anything to save" in said
    assert said.count("Interrupted, and saved after step") == 2
    assert worker.run(job) == 0
    assert payload(out) == payload(tmp_path / "whole")


@pytest.mark.parametrize("harm", HARM)
def test_a_damaged_store_is_never_trained_on(tmp_path: Path, harm: str) -> None:
    corpus = Corpus.make(tmp_path / "corpus")
    do, words = HARM[harm]
    do(corpus.inputs["latents"].path / "plain")
    with pytest.raises(Damaged, match=words.replace("hard 1 of", "hard 1 (of|in)|Row 10 in shard 1")):
        run(corpus, tmp_path / "out", {"save_every": 1})
    steps = steps_saved(tmp_path / "out")
    assert steps == [] or harm == "bit flipped", "what can be seen at once stops the run before step 1"
    order = [Recipe(*_recipe(corpus)).rows(step).tolist() for step in range(4)] if steps else []
    assert not any(10 in rows for rows in order[: len(steps)]), "no step took the changed row"


def test_what_harms_nothing_changes_nothing(corpus: Corpus, tmp_path: Path) -> None:
    run(corpus, tmp_path / "whole", {"steps": 4})
    strayed = Corpus.make(tmp_path / "corpus", heldout=Size(rows=9))
    (strayed.inputs["latents"].path / "plain" / "c" / "1" / "0" / ".tmp-12-ab").write_bytes(b"half")
    run(strayed, tmp_path / "strayed", {"steps": 4})
    assert payload(tmp_path / "strayed") == payload(tmp_path / "whole")


def test_rows_that_are_truly_zero_are_trained_on(tmp_path: Path) -> None:
    tokens = make_tokens(tmp_path / "tokens", SMALL)
    latents = make_latents(tmp_path / "latents", tokens, SMALL, zero=range(10, 20))
    assert not Rows.open(latents.path / "plain")[12].any()
    facts = run(Corpus({"tokens": tokens, "latents": latents}), tmp_path / "out", {"steps": 4})
    assert facts["steps"] == 4


def test_a_row_that_is_not_finite_stops_the_run_before_it_counts(tmp_path: Path) -> None:
    corpus = Corpus.make(tmp_path / "corpus")
    order = [Recipe(*_recipe(corpus)).rows(step).tolist() for step in range(4)]
    row = next(row for row in order[3] if all(row not in earlier for earlier in order[:3]))
    run(corpus, tmp_path / "whole", {"steps": 3, "save_every": 1})
    poison(corpus, row)
    with pytest.raises(Failed, match=rf"loss of step 4 is (nan|inf); .* It comes from rows {row}\. "):
        run(corpus, tmp_path / "poisoned", {"steps": 20, "save_every": 1})
    assert steps_saved(tmp_path / "poisoned")[-1] == "step_3"
    for name in ("model", "ema", "optimizer"):
        one, two = (
            tmp_path / f"{run}/checkpoints/step_3/{name}.safetensors" for run in ("whole", "poisoned")
        )
        assert one.read_bytes() == two.read_bytes()


def _recipe(corpus: Corpus) -> tuple[Any, ...]:
    context = StageContext(Path(), corpus.inputs, Compute(), LineProgress())
    latents, _ = open_splits(Train.model_validate(TRAIN).latents, context, torch.device("cpu"), drops=False)
    return latents, TRAIN["seed"], TRAIN["batch"], range(6), ObjectiveConfig(), torch.device("cpu")


def test_a_gradient_that_is_not_finite_stops_the_run(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(corpus, tmp_path / "whole", {"steps": 4, "save_every": 2})
    calls: list[int] = []

    def clip(parameters, limit: float) -> torch.Tensor:
        calls.append(1)
        return (
            torch.tensor(float("inf"))
            if len(calls) == 5
            else torch.nn.utils.clip_grad_norm_(parameters, limit)
        )

    monkeypatch.setattr(training, "clip", clip)
    with pytest.raises(
        Failed, match=r"gradient norm of step 5 is inf; .* It was made of rows (\d+, ){5}\d+\. "
    ):
        run(corpus, tmp_path / "refused", {"save_every": 2})
    final = "checkpoints/step_4/ema.safetensors"
    assert (tmp_path / "refused" / final).read_bytes() == (tmp_path / "whole" / final).read_bytes()


def test_inputs_that_do_not_fit_are_refused_before_anything(corpus: Corpus, tmp_path: Path) -> None:
    with pytest.raises(Failed, match=r"std 0\.2, but the stored latents have mean -?0\.\d+ and std 1\.9"):
        run(corpus, tmp_path, {"latents": {"std": 0.2}})
    assert payload(tmp_path) == {}


def test_a_held_out_split_needs_both_inputs(corpus: Corpus, tmp_path: Path) -> None:
    inputs = {role: artifact for role, artifact in corpus.inputs.items() if role != "heldout_latents"}
    with pytest.raises(Failed, match="give it the missing one"):
        run(Corpus(inputs), tmp_path, HELDOUT)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"optim": {"weight_decay": 0.1}}, "muon decays no weights"),
        ({"model": {"depth": 1, "hidden": 18, "heads": 4}}, "hidden 18 does not split into 4 heads"),
        ({"objective": {"guidance_low": 6.0}}, "guidance runs from 6.0 to 5.0"),
    ],
)
def test_settings_without_a_meaning_are_refused(
    corpus: Corpus, tmp_path: Path, settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(Misconfigured, match=words):
        run(corpus, tmp_path, settings)
    assert payload(tmp_path) == {}


def test_processes_that_did_not_come_up_are_missed(corpus: Corpus, tmp_path: Path) -> None:
    with pytest.raises(Failed, match="asks for 2 processes, but 1 came up"):
        run(corpus, tmp_path, processes=2)


def test_a_run_with_a_past_does_not_begin_again(corpus: Corpus, worker: Server, tmp_path: Path) -> None:
    job = write_job(corpus, tmp_path, TRAIN)
    assert worker.run(job, term=6) == EXIT_CODE
    for name in steps_saved(tmp_path):
        (tmp_path / "checkpoints" / name / "optimizer.safetensors").write_bytes(b"")
    assert worker.run(job) == 1
    told = json.loads((tmp_path / "aux/failure.json").read_text())["text"]
    assert "step_5 has 0 bytes in optimizer.safetensors" in told
    assert "delete that folder to train from step 0" in told


@pytest.mark.parametrize("damaged", ["cut", "gone", "empty", "no files", "losses"])
def test_a_run_goes_on_from_the_newest_whole_checkpoint_and_says_what_it_skipped(
    corpus: Corpus, worker: Server, tmp_path: Path, damaged: str
) -> None:
    whole, out = tmp_path / "whole", tmp_path / "out"
    settings = {**TRAIN, "steps": 14, "save_every": 1, "keep": 3}
    assert worker.run(write_job(corpus, whole, settings)) == 0
    job = write_job(corpus, out, settings)
    assert worker.run(job, term=10) == EXIT_CODE
    *_, before, last = steps_saved(out)
    assert (before, last) in [("step_10", "step_11"), ("step_11", "step_12")], "and as text step_9 comes last"
    newest = out / "checkpoints" / last
    model, optimizer = newest / "model.safetensors", newest / "optimizer.safetensors"
    if damaged == "cut":
        model.write_bytes(model.read_bytes()[: model.stat().st_size // 2])
    elif damaged == "gone":
        optimizer.unlink()
    elif damaged == "empty":
        optimizer.write_bytes(b"")
    elif damaged == "losses":  # one digit of the line that this checkpoint has and the one before has not
        metrics = out / "metrics.jsonl"
        told = json.loads((newest / "state.json").read_text())["metrics_bytes"]
        raw = bytearray(metrics.read_bytes())
        place = next(place for place in range(told - 1, 0, -1) if chr(raw[place]).isdigit())
        raw[place] ^= 1
        metrics.write_bytes(raw)
    else:
        shutil.rmtree(newest)
        newest.mkdir()
    assert worker.run(job) == 0
    said = (out / "aux" / "events.jsonl").read_text()
    assert f"Skipped checkpoint {last} " in said
    assert f"Going on after step {before.removeprefix('step_')}." in said
    assert payload(out) == payload(whole)


def test_the_learning_rate_is_a_function_of_the_step(corpus: Corpus, worker: Server, tmp_path: Path) -> None:
    optim = {"name": "adamw", "lr": 0.01, "warmup_steps": 10, "schedule": "cosine"}
    settings = {**TRAIN, "steps": 100, "optim": optim, "save_every": 37, "batch": 2}
    job = write_job(corpus, tmp_path, settings)
    assert worker.run(job, step=37) == -9
    assert worker.run(job) == 0
    rates = [line["lr"] for line in read_metrics(tmp_path / "metrics.jsonl")]
    cosine = [0.005 * (1 + math.cos(math.pi * step / 90)) for step in range(90)]
    assert rates == pytest.approx([0.001 * step for step in range(10)] + cosine)


def test_pairs_train_on_the_view_their_draw_asks_for(tmp_path: Path) -> None:
    corpus = Corpus.make(tmp_path / "pairs", PAIRS)
    objective = {"condition_dropout": 0.5, "decode_noise_scale": 1.0}
    facts = run(corpus, tmp_path / "out", {"objective": objective, "latents": {"mean": 0.0, "std": 2.0}})
    assert facts["steps"] == 20
    (corpus.inputs["latents"].path / "target").rename(tmp_path / "away")
    with pytest.raises(Failed, match="no view 'target'"):
        run(corpus, tmp_path / "refused", {"objective": objective})


def test_held_out_numbers_depend_on_weights_alone(corpus: Corpus, tmp_path: Path) -> None:
    still = {"optim": {"lr": 1e-30, "ema": 0.5}, **HELDOUT}
    run(corpus, tmp_path, {**still, "steps": 14})
    lines = [line for line in read_metrics(tmp_path / "metrics.jsonl") if "heldout_loss" in line]
    assert len(lines) == 3
    for line in lines:
        assert line["heldout_loss"] == pytest.approx(lines[0]["heldout_loss"], rel=1e-5)
        assert line["heldout_raw_loss"] == pytest.approx(line["heldout_loss"], rel=1e-5)
