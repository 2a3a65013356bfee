"""One round of distillation: the student of a teacher, from start to artifact, exact whatever happens to it."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from forked_worker import Server
from safetensors.torch import load_file
from toy_training import SMALL, TRAIN, Corpus, Size, finish, flat, launch, payload, write_job

from elf.cache.store import Artifact
from elf.pipeline.errors import Failed
from elf.pipeline.progress import LineProgress
from elf.pipeline.stage import Compute, StageContext
from elf.stages import distill, train
from elf.stages.stopping import EXIT_CODE
from elf.stages.train_settings import DistillRound, Train
from elf.stages.trained import load_trained
from elf.stages.training_metrics import read_metrics

ROUND: dict[str, Any] = {
    "student_steps": 4,
    "span_steps": 4,
    "optim": {"lr": 0.01, "warmup_steps": 2, "ema": 0.9},
    "batch": 6,
    "steps": 12,
    "heldout": {"every": 6, "rows": 9},
    "save_every": 5,
}
PAIRS = replace(SMALL, max_source=3)


def context(out: Path, inputs: dict[str, Artifact], **compute: Any) -> StageContext:
    out.mkdir(exist_ok=True)
    setup = Compute(device="cpu", threads=1).model_copy(update=compute)
    return StageContext(out, inputs, setup, LineProgress(every=1e9))


def teach(corpus: Corpus, out: Path, **settings: Any) -> dict[str, Artifact]:
    """Inputs of a first round over the corpus: its teacher is where the student starts."""
    section = Train.model_validate_json(json.dumps({**TRAIN, **settings}))
    train.run(section, context(out, dict(corpus.inputs)))
    teacher = finish(out, "train", {}, {})
    return {**corpus.inputs, "teacher": teacher, "start": teacher}


def run(
    inputs: dict[str, Artifact], out: Path, settings: dict[str, Any] | None = None, **compute: Any
) -> dict[str, Any]:
    section = DistillRound.model_validate_json(json.dumps({**ROUND, **(settings or {})}))
    return dict(distill.run(section, context(out, inputs, **compute)))


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Artifact]:
    folder = tmp_path_factory.mktemp("distill")
    corpus = Corpus.make(folder / "corpus", heldout=Size(rows=9))
    objective = {"noise_scale": 0.5, "decode_noise_scale": 0.5}
    settings = {"objective": objective, "optim": {"lr": 0.02, "ema": 0.95}, "save_every": 1000}
    return teach(corpus, folder / "teacher", steps=120, **settings)


@pytest.fixture(scope="module")
def worker() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


def weights(path: Path, part: str) -> dict[str, torch.Tensor]:
    (folder,) = (path / "checkpoints").iterdir()
    return load_file(folder / f"{part}.safetensors")


def test_what_a_round_leaves(inputs: dict[str, Artifact], tmp_path: Path) -> None:
    facts = run(inputs, tmp_path)
    assert {name.split("/")[0] for name in payload(tmp_path)} == {
        "checkpoints",
        "metrics.jsonl",
        "model.json",
    }
    teacher = load_trained(inputs["teacher"].path, "ema")
    assert facts["teacher_weights"] == teacher.digest
    assert (facts["student_steps"], facts["span_steps"], facts["steps"]) == (4, 4, 12)
    student = load_trained(tmp_path, "ema")
    assert student.card == teacher.card, "it is sampled as its teacher is"
    lines = list(read_metrics(tmp_path / "metrics.jsonl"))
    steps = [line for line in lines if "loss" in line]
    assert len(steps) == 12
    for line in steps:
        assert line["decode_rows"] + line["denoise_rows"] == pytest.approx(6)
        decoded, denoised = line["decode_rows"], line["denoise_rows"]
        assert line["loss"] == pytest.approx((line["ce"] * decoded + line["l2"] * denoised) / 6)
        assert 4 * denoised <= line["teacher_rows"] <= 5 * denoised
        assert sum(line["denoise_rows_by_t"]) == denoised
        assert sum(line["decode_rows_by_t"]) == pytest.approx(decoded)
    assert facts["teacher_rows"] == sum(line["teacher_rows"] for line in steps) > 0
    assert [line["step"] for line in lines if "heldout_loss" in line] == [0, 6, 12]


def test_a_round_starts_from_averaged_weights(inputs: dict[str, Artifact], tmp_path: Path) -> None:
    """The first step of a warm-up has learning rate zero."""
    run(inputs, tmp_path / "one", {"steps": 1})
    for name, tensor in weights(inputs["teacher"].path, "ema").items():
        assert torch.equal(weights(tmp_path / "one", "model")[name], tensor)
    run(inputs, tmp_path / "longer")
    later = {**inputs, "start": finish(tmp_path / "longer", "distill", {}, {})}
    facts = run(later, tmp_path / "next", {"steps": 1, "student_steps": 2, "span_steps": 8})
    for name, tensor in weights(tmp_path / "longer", "ema").items():
        assert torch.equal(weights(tmp_path / "next", "model")[name], tensor)
    assert facts["teacher_weights"] == load_trained(inputs["teacher"].path, "ema").digest, "the first, always"


def test_before_it_learns_the_student_is_the_teacher_alone(
    inputs: dict[str, Artifact], tmp_path: Path
) -> None:
    facts = run(inputs, tmp_path, {"steps": 1})
    (first, *_) = read_metrics(tmp_path / "metrics.jsonl")
    assert facts["teacher_alone"] == {name: first[f"heldout_{name}"] for name in ("loss", "ce", "l2")}


def test_the_student_learns_to_land_where_the_teacher_does(
    inputs: dict[str, Artifact], tmp_path: Path
) -> None:
    optim = {"lr": 0.003, "ema": 0.95}
    facts = run(inputs, tmp_path, {"steps": 100, "optim": optim, "heldout": {"every": 100, "rows": 9}})
    assert facts["heldout"]["heldout_l2"] < 0.8 * facts["teacher_alone"]["l2"]


def test_rounds_repeat_and_differ(inputs: dict[str, Artifact], tmp_path: Path) -> None:
    settings = {"steps": 3, "heldout": None}
    for name, more in (("one", {}), ("two", {}), ("seed", {"seed": 5}), ("steps", {"student_steps": 2})):
        run(inputs, tmp_path / name, {**settings, **more})
    one, two, seed, steps = (
        payload(tmp_path / name)["metrics.jsonl"] for name in ("one", "two", "seed", "steps")
    )
    assert one == two
    assert len({one, seed, steps}) == 3


@pytest.mark.parametrize("settings", [{}, {"accumulate": 3}])
def test_rows_may_come_a_few_at_a_time(
    inputs: dict[str, Artifact], tmp_path: Path, settings: dict[str, Any]
) -> None:
    settings = {"steps": 4, "heldout": None, **settings}
    run(inputs, tmp_path / "whole", settings)
    run(inputs, tmp_path / "pieces", settings, batch=2)
    one, two = (list(read_metrics(tmp_path / name / "metrics.jsonl")) for name in ("whole", "pieces"))
    for a, b in zip(one, two, strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-5)
        assert a["grad_norm"] == pytest.approx(b["grad_norm"], rel=1e-4)
        assert a["teacher_rows"] == b["teacher_rows"]


def job(inputs: dict[str, Artifact], out: Path, **compute: int) -> Path:
    return write_job(
        Corpus(inputs),
        out,
        {**ROUND, "save_every": 3},
        compute=compute,
        entry="elf.stages.distill:run",
        section="elf.stages.train_settings:DistillRound",
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_processes_take_the_same_steps_as_one(inputs: dict[str, Artifact], tmp_path: Path) -> None:
    launch(job(inputs, tmp_path / "alone", processes=1), 1)
    launch(job(inputs, tmp_path / "two", processes=2), 2)
    lines, wanted = (list(read_metrics(tmp_path / name / "metrics.jsonl")) for name in ("two", "alone"))
    assert len(lines) == len(wanted) == 12 + 3
    for line, other in zip(lines, wanted, strict=True):
        assert flat(line) == pytest.approx(flat(other), rel=2e-4, abs=1e-6)
    facts = [json.loads((tmp_path / name / "aux" / "facts.json").read_text()) for name in ("two", "alone")]
    assert facts[0]["teacher_rows"] == facts[1]["teacher_rows"]
    assert facts[0]["teacher_alone"] == pytest.approx(facts[1]["teacher_alone"], rel=1e-5)


@pytest.mark.slow
def test_kill_9_and_sigterm_change_nothing(
    inputs: dict[str, Artifact], worker: Server, tmp_path: Path
) -> None:
    assert worker.run(job(inputs, tmp_path / "whole")) == 0
    killed = job(inputs, tmp_path / "killed")
    assert [worker.run(killed, step=step) for step in (0, 4, 7)] == [-9] * 3
    assert worker.run(killed, term=9) == EXIT_CODE
    assert worker.run(killed) == 0
    assert payload(tmp_path / "killed") == payload(tmp_path / "whole")
    facts = [json.loads((tmp_path / name / "aux" / "facts.json").read_text()) for name in ("killed", "whole")]
    assert facts[0] == facts[1], "how often the teacher was called too"


@pytest.mark.parametrize(
    "objective",
    [
        {"condition_dropout": 0.4, "decode_share": 0.5},
        {"self_condition": 0.0},
        {"decode_share": 1.0},
        {"decode_share": 0.0},
    ],
)
def test_every_objective_can_be_distilled(tmp_path: Path, objective: dict[str, float]) -> None:
    pairs = teach(Corpus.make(tmp_path / "corpus", PAIRS), tmp_path / "teacher", steps=6, objective=objective)
    facts = run(pairs, tmp_path / "out", {"steps": 4, "heldout": None})
    assert facts["steps"] == 4
    assert facts["teacher_alone"] is None
    assert (facts["teacher_rows"] == 0) == (objective.get("decode_share") == 1.0)
    moved = weights(tmp_path / "out", "model")
    assert any(
        not torch.equal(moved[name], old) for name, old in weights(tmp_path / "teacher", "ema").items()
    )


def test_dropout_is_drawn_from_the_step(tmp_path: Path) -> None:
    corpus = Corpus.make(tmp_path / "corpus")
    dropping = teach(
        corpus, tmp_path / "teacher", steps=3, model={**TRAIN["model"], "depth": 4, "dropout": 0.3}
    )
    for name, noise in (("one", 1), ("two", 2)):
        torch.manual_seed(noise)
        run(dropping, tmp_path / name, {"steps": 3, "heldout": None})
    assert payload(tmp_path / "one") == payload(tmp_path / "two")


def test_a_start_of_another_run_is_refused(inputs: dict[str, Artifact], tmp_path: Path) -> None:
    corpus = Corpus({role: inputs[role] for role in ("tokens", "latents")})
    other = teach(corpus, tmp_path / "other", steps=2, model={**TRAIN["model"], "depth": 2})
    with pytest.raises(Failed, match=r"whose model\.depth is 2, while its teacher's is 1"):
        run({**inputs, "start": other["teacher"]}, tmp_path / "out")
    assert payload(tmp_path / "out") == {}


def test_latents_of_another_kind_are_refused(inputs: dict[str, Artifact], tmp_path: Path) -> None:
    other = Corpus.make(tmp_path / "corpus", replace(SMALL, vocabulary=41))
    with pytest.raises(Failed, match="trained with vocabulary size 40, but is given vocabulary size 41"):
        run({**other.inputs, "teacher": inputs["teacher"], "start": inputs["start"]}, tmp_path / "out")


def test_a_teacher_without_weights_is_an_error(inputs: dict[str, Artifact], tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "model.json").write_bytes((inputs["teacher"].path / "model.json").read_bytes())
    with pytest.raises(Failed, match="holds no checkpoint, so there are no weights"):
        run({**inputs, "teacher": finish(bare, "train", {}, {})}, tmp_path / "out")
