"""Sampling the baselines by the stage that samples flows: the same text whatever is sampled beside it."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from judging import make_artifact, make_context
from tokens import make_tokens
from toy_sampling import LENGTH, PAIRS, TEXT, WORDS
from toy_training import TRAIN

from elf.cache.store import Artifact
from elf.pipeline.errors import Failed, Misconfigured
from elf.pipeline.progress import LineProgress
from elf.pipeline.stage import StageContext
from elf.stages import checkpoint, sample, train
from elf.stages.compute import TrainCompute
from elf.stages.config import Encode, Sample
from elf.stages.model.token_config import TokenConfig
from elf.stages.model.token_network import build_tokens
from elf.stages.prompting import open_prompter
from elf.stages.rows import TokenRows
from elf.stages.texts import GLIMPSES, SETTINGS, Text, read_texts
from elf.stages.token_models import TokenCard
from elf.stages.train_settings import Train
from elf.stages.trained import vocabulary_digest

METHODS = ("autoregressive", "masked")


def make_model(path: Path, tokens: Artifact, method: Any, *, wrong: float = 0.0) -> Artifact:
    """A train artifact of random weights that fits `tokens`; `wrong` is added to some of them."""
    vocabulary = TokenRows.open(tokens.path).vocabulary
    model = TokenConfig(method, vocabulary.size, vocabulary.length, hidden=16, depth=2, heads=2)
    weights = []
    for seed in (0, 1):
        generator = torch.Generator().manual_seed(seed)
        state = build_tokens(model, generator).state_dict()
        weights.append(
            {name: each + 0.3 * torch.randn(each.shape, generator=generator) for name, each in state.items()}
        )
        weights[-1]["projection.bias"] += wrong
    artifact = make_artifact(path, "train")
    saved = checkpoint.Checkpoint(3, weights[0], weights[1], {"a": torch.zeros(1)}, {})
    checkpoint.save(path / "checkpoints", saved, keep=1)
    TokenCard(model, "eos", vocabulary_digest(vocabulary)).write(path / "model.json")
    return artifact


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    folder = tmp_path_factory.mktemp("text") / "tokens"
    return make_artifact(make_tokens(folder, TEXT, words=WORDS, length=LENGTH), "tokenize")


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    folder = tmp_path_factory.mktemp("pairs") / "tokens"
    return make_artifact(
        make_tokens(folder, PAIRS, words=WORDS, length=LENGTH, max_source=3),
        "tokenize",
        facts={"rows": len(PAIRS)},
    )


@pytest.fixture(scope="module")
def models(
    text: Artifact, pairs: Artifact, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, Artifact]]:
    """Inputs of sampling by method, and by method of pairs."""
    root = tmp_path_factory.mktemp("models")
    return {
        f"{method}{of}": {"tokens": tokens, "model": make_model(root / f"{method}{of}", tokens, method)}
        for method in METHODS
        for of, tokens in (("", text), (" pairs", pairs))
    }


def setting(method: str, **changes: Any) -> Sample:
    steps = {"steps": 5} if method == "masked" else {}
    return Sample.model_validate(
        {"name": "x", "method": method, "count": 12, "seeds": (0, 7), **steps, **changes}
    )


def run(out: Path, inputs: dict[str, Artifact], chosen: Sample, batch: int | None = None) -> tuple[Text, ...]:
    sample.run(chosen, make_context(out, inputs, batch=batch))
    return read_texts(out / "samples.jsonl")


@pytest.mark.parametrize("method", METHODS)
def test_a_text_is_the_same_in_any_batch(tmp_path: Path, models: Any, method: str) -> None:
    whole = run(tmp_path / "whole", models[method], setting(method))
    assert [(each.seed, each.id) for each in whole] == [(seed, i) for seed in (0, 7) for i in range(12)]
    assert len({each.text for each in whole}) > 15
    for batch in (1, 5):
        assert run(tmp_path / str(batch), models[method], setting(method), batch) == whole
    few = run(tmp_path / "few", models[method], setting(method, count=3, seeds=(7,)))
    assert few == tuple(each for each in whole if each.seed == 7 and each.id in range(3))


@pytest.mark.parametrize("method", METHODS)
def test_settings_hold_what_made_the_texts_and_bear_on_them(tmp_path: Path, models: Any, method: str) -> None:
    plain = run(tmp_path / "plain", models[method], setting(method))
    changed = {"top_p": 0.3, "temperature": 0.5, "weights": "raw", "precision": "bf16"}
    for name, value in changed.items():
        other = run(tmp_path / name, models[method], setting(method, **{name: value}))
        told = json.loads((tmp_path / name / SETTINGS).read_text())
        assert told[name] == value
        assert told["method"] == method
        assert ("steps" in told) == (method == "masked")
        assert not {"guidance", "gamma", "grid"} & set(told)
        assert name == "precision" or other != plain
    greedy = run(tmp_path / "greedy", models[method], setting(method, temperature=0.0))
    if method == "autoregressive":
        assert len({each.text for each in greedy}) == 1, "nothing is left to chance"


@pytest.mark.parametrize("method", METHODS)
def test_pairs_give_one_text_per_row_that_goes_on_from_its_source(
    tmp_path: Path, models: Any, method: str
) -> None:
    inputs = models[f"{method} pairs"]
    made = run(tmp_path / "whole", inputs, setting(method, seeds=(0,), temperature=0.0))
    assert [each.id for each in made] == list(range(len(PAIRS)))
    assert [(each.source, each.reference) for each in made] == PAIRS
    assert all(len(each.ids or ()) <= LENGTH - 3 for each in made)
    assert len({each.text for each in made}) > 3, "the sources bear on them"
    assert run(tmp_path / "two", inputs, setting(method, seeds=(0,), temperature=0.0), 2) == made


@pytest.mark.parametrize("method", METHODS)
def test_a_typed_source_is_read_as_a_row_is(tmp_path: Path, models: Any, method: str) -> None:
    chosen, inputs = setting(method, seeds=(0,)), models[f"{method} pairs"]
    wanted = run(tmp_path, inputs, chosen)
    prompter = open_prompter(inputs["model"], inputs["tokens"], chosen, Encode(), encoder=None)
    for each in wanted[::4]:
        assert isinstance(each.id, int)
        assert prompter.texts(each.id + 1, seed=0, prompt=each.source)[each.id] == each.text
    with pytest.raises(Misconfigured, match="give it a source"):
        prompter.texts(1, seed=0)


def test_texts_of_no_source_too(tmp_path: Path, models: Any) -> None:
    chosen, inputs = setting("masked", seeds=(0,)), models["masked"]
    wanted = run(tmp_path, inputs, chosen)
    prompter = open_prompter(inputs["model"], inputs["tokens"], chosen, Encode(), encoder=None)
    assert prompter.texts(4, seed=0) == [each.text for each in wanted[:4]]


def test_what_does_not_fit_is_refused(tmp_path: Path, models: Any, text: Artifact) -> None:
    with pytest.raises(Misconfigured, match="has method masked, and the model was trained with"):
        run(tmp_path / "1", models["autoregressive"], setting("masked"))
    other = make_artifact(make_tokens(tmp_path / "tokens", TEXT, words=WORDS, length=6), "tokenize")
    with pytest.raises(Failed, match="trained with row length 8, but is given row length 6"):
        run(tmp_path / "2", models["masked"] | {"tokens": other}, setting("masked"))
    for method in METHODS:
        broken = make_model(tmp_path / method, text, method, wrong=3e38)
        with pytest.raises(Failed, match="logits that are not finite\\. Take the rows"):
            run(tmp_path / f"3{method}", {"tokens": text, "model": broken}, setting(method))


@pytest.mark.parametrize("method", METHODS)
def test_texts_are_looked_at_while_it_learns(tmp_path: Path, pairs: Artifact, method: str) -> None:
    section = Train.model_validate_json(
        json.dumps(
            {
                **TRAIN,
                "method": method,
                "latents": {},
                "model": {"depth": 1, "hidden": 16, "heads": 2},
                "steps": 4,
            }
        )
    )
    compute = TrainCompute.model_validate(
        {"device": "cpu", "threads": 1, "samples": {"every": 2, "count": 2, "steps": 3}}
    )
    train.run(section, StageContext(tmp_path, {"tokens": pairs}, compute, LineProgress(every=1e9)))
    looked = [read_texts(tmp_path / "aux" / GLIMPSES / f"step_{step}.jsonl") for step in (2, 4)]
    assert [[each.source for each in texts] for texts in looked] == [[PAIRS[0][0], PAIRS[1][0]]] * 2
