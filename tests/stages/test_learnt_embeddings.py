"""`train.embeddings`: a flow over a table that is learnt with it, from tokens to texts, with nothing encoded."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from judging import make_artifact, make_context
from safetensors.torch import load_file
from tokens import make_tokens
from toy_sampling import PAIRS, TEXT, WORDS
from toy_training import TRAIN, payload

from elf.cache.store import Artifact
from elf.pipeline.config import load_experiment
from elf.pipeline.errors import Misconfigured
from elf.pipeline.progress import LineProgress
from elf.pipeline.stage import StageContext
from elf.stages import sample, train
from elf.stages.compute import TrainCompute
from elf.stages.config import Encode, Experiment, Sample
from elf.stages.experiment import plan_experiment
from elf.stages.prompting import open_prompter
from elf.stages.texts import GLIMPSES, read_texts
from elf.stages.train_settings import Train
from elf.stages.trained import load_trained

SHIPPED = Path(__file__).parents[2] / "configs"
SETTINGS: dict[str, Any] = {**TRAIN, "latents": {}, "embeddings": {"width": 6}, "steps": 6, "save_every": 3}
WITHOUT = ("train.latents.std=0.2", "train.embeddings={width: 48}")


def learn(tokens: Artifact, out: Path, settings: Any = None, **compute: Any) -> Artifact:
    section = Train.model_validate_json(json.dumps({**SETTINGS, **(settings or {})}))
    setup = TrainCompute(device="cpu", threads=1).model_copy(update=compute)
    out.mkdir(exist_ok=True)
    given = {"tokens": tokens, "heldout_tokens": tokens}
    train.run(section, StageContext(out, given, setup, LineProgress(every=1e9)))
    return replace(make_artifact(out.with_name(f"{out.name}-as"), "train"), path=out)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    folder = tmp_path_factory.mktemp("pairs") / "tokens"
    made = make_tokens(folder, PAIRS, words=WORDS, length=8, max_source=3)
    return make_artifact(made, "tokenize", facts={"rows": len(PAIRS)})


def test_the_table_is_trained_averaged_and_saved(pairs: Artifact, tmp_path: Path) -> None:
    learn(pairs, tmp_path / "out", {"heldout": {"every": 3, "rows": 4}})
    start = load_file(
        learn(pairs, tmp_path / "start", {"steps": 1}).path / "checkpoints/step_1/ema.safetensors"
    )
    raw, ema = (
        load_file(tmp_path / f"out/checkpoints/step_6/{name}.safetensors") for name in ("model", "ema")
    )
    assert raw["table"].shape == ema["table"].shape == (1, 33, 6)
    assert not torch.equal(raw["table"], start["table"])
    assert not torch.equal(raw["table"], ema["table"])
    trained = load_trained(tmp_path / "out", "ema")
    assert trained.model.table
    assert trained.model.width == 6
    learn(pairs, tmp_path / "again", {"heldout": {"every": 3, "rows": 4}})
    assert payload(tmp_path / "again") == payload(tmp_path / "out")


def test_it_goes_on_from_a_checkpoint(pairs: Artifact, tmp_path: Path) -> None:
    learn(pairs, tmp_path / "whole")
    learn(pairs, tmp_path / "parts", {"steps": 3})
    learn(pairs, tmp_path / "parts")
    assert payload(tmp_path / "parts") == payload(tmp_path / "whole")


def test_pairs_are_conditioned_on_rows_of_the_table(pairs: Artifact, tmp_path: Path) -> None:
    model = learn(pairs, tmp_path / "out", {"steps": 20}, samples=None)
    setting = Sample(name="x", method="ode", steps=3, input_guidance=2.0)
    sample.run(setting, make_context(tmp_path / "sampled", {"model": model, "tokens": pairs}))
    texts = read_texts(tmp_path / "sampled" / "samples.jsonl")
    assert [(each.source, each.reference) for each in texts] == PAIRS
    prompter = open_prompter(model, pairs, setting, Encode(), encoder=None)
    assert prompter.texts(3, seed=0, prompt=texts[2].source)[2] == texts[2].text


def test_text_is_sampled_as_ever_and_looked_at_on_the_way(tmp_path: Path) -> None:
    tokens = make_artifact(make_tokens(tmp_path / "tokens", TEXT, words=WORDS, length=8), "tokenize")
    compute = TrainCompute.model_validate({"samples": {"every": 3, "count": 2, "steps": 2}})
    model = learn(tokens, tmp_path / "out", samples=compute.samples)
    assert len(read_texts(tmp_path / "out" / "aux" / GLIMPSES / "step_6.jsonl")) == 2
    setting = Sample(name="x", method="sde", steps=3, count=5, trajectories=2)
    sample.run(setting, make_context(tmp_path / "sampled", {"model": model, "tokens": tokens}))
    assert len(read_texts(tmp_path / "sampled" / "samples.jsonl")) == 5


def test_nothing_is_encoded() -> None:
    plan = plan_experiment(load_experiment("tiny", Experiment, WITHOUT, SHIPPED))
    assert not {"encode", "encode-validation", "pretrain"} & set(plan.names())
    assert sorted(plan["train"].step.inputs) == ["heldout_tokens", "tokens"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            ["train.latents.std=measured"],
            r"`train\.embeddings` takes no encoder's states.*train\.latents\.std=0\.2",
        ),
        (["distill={steps: 5}"], "`distill` is of flows of an encoder's states"),
        (["train.method=masked", "sample=[]"], "a baseline has a table anyway"),
        (["encode.encoder={uri: 'path:x'}"], "name the encoder once"),
    ],
)
def test_what_has_no_meaning_with_it_is_refused(settings: list[str], words: str) -> None:
    with pytest.raises(Misconfigured, match=words):
        load_experiment("tiny", Experiment, [*WITHOUT, *settings], SHIPPED)
