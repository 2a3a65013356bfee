import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from judging import make_artifact, make_context
from tokens import END, make_tokens
from torch._dynamo.utils import counters
from toy_sampling import (
    LENGTH,
    PAIR_SIZE,
    PAIRS,
    TEXT,
    WIDTH,
    WORDS,
    make_model,
    make_pairs,
    make_text,
    setting,
)
from toy_training import make_latents

from elf.cache.store import Artifact
from elf.pipeline.errors import Failed, Misconfigured
from elf.stages import sample
from elf.stages.compute import SampleCompute
from elf.stages.model.config import ObjectiveConfig
from elf.stages.model.layers import SwiGLU
from elf.stages.texts import Text, read_texts
from elf.stages.vocabulary import load_tokenizer


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Artifact]:
    return make_text(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Artifact]:
    return make_pairs(tmp_path_factory.mktemp("pairs"))


def run(out: Path, inputs: dict[str, Artifact], batch: int | None = None, **changes: Any) -> tuple[Text, ...]:
    sample.run(setting(**changes), make_context(out, inputs, batch=batch))
    return read_texts(out / "samples.jsonl")


@pytest.mark.parametrize("method", ["ode", "sde"])
def test_a_text_is_the_same_in_any_batch(tmp_path: Path, inputs: dict[str, Artifact], method: str):
    whole = run(tmp_path / "whole", inputs, method=method)
    assert [(text.seed, text.id) for text in whole] == [(seed, i) for seed in (0, 7) for i in range(20)]
    assert len({text.text for text in whole}) > 30
    for batch in (1, 7, 8):
        out = tmp_path / f"{batch}"
        run(out, inputs, batch=batch, method=method)
        for name in ("samples.jsonl", "settings.json"):
            assert (out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
        made = sorted(path.name for path in out.iterdir())
        assert made == ["aux", "samples.jsonl", "settings.json"]


def test_a_text_is_the_same_whatever_is_sampled_beside_it(tmp_path: Path, inputs: dict[str, Artifact]):
    many = run(tmp_path / "many", inputs)
    few = run(tmp_path / "few", inputs, count=5, seeds=(7,))
    assert few == tuple(text for text in many if text.seed == 7 and isinstance(text.id, int) and text.id < 5)


def test_another_batch_draws_the_same_numbers_and_rounds_at_most(tmp_path: Path, inputs: dict[str, Artifact]):
    """At a width where matrix products may go other ways for fewer rows."""
    wide = inputs | {"model": make_model(tmp_path / "wide", inputs["tokens"], hidden=192, depth=2)}
    context = make_context(tmp_path / "out", wide)
    sampling, _ = sample.prepare(setting(), context, torch.device("cpu"))
    whole, alone = sampling.draws(3, range(20)), sampling.draws(3, [17])
    assert torch.equal(whole.start_BLD[17:18], alone.start_BLD)
    assert torch.equal(whole.times_BS[17:18], alone.times_BS)
    assert torch.equal(whole.noise(2)[17:18], alone.noise(2))
    together, apart = sampling.latents(3, range(20), None)[17:18], sampling.latents(3, [17], None)
    assert torch.allclose(together, apart, rtol=1e-3, atol=1e-3 * float(apart.abs().max()))


class Killed(BaseException):
    """Stands for a signal: nothing between here and the test handles it."""


@pytest.mark.parametrize("batches", [0, 1, 4])
def test_a_killed_run_goes_on_in_other_batches(
    tmp_path: Path, inputs: dict[str, Artifact], monkeypatch: pytest.MonkeyPatch, batches: int
):
    run(tmp_path / "undisturbed", inputs)
    ids, places = sample.Sampling.ids, []

    def sampled(sampling: sample.Sampling, seed: int, wanted: Any) -> Any:
        if len(places) == batches:
            raise Killed
        places.append(wanted)
        return ids(sampling, seed, wanted)

    with monkeypatch.context() as patch:
        patch.setattr(sample.Sampling, "ids", sampled)
        with pytest.raises(Killed):
            run(tmp_path / "out", inputs, batch=6)
    again: list[Any] = []
    monkeypatch.setattr(
        sample.Sampling, "ids", lambda model, seed, wanted: again.extend(wanted) or ids(model, seed, wanted)
    )
    run(tmp_path / "out", inputs, batch=5)
    assert len(again) + sum(map(len, places)) == 40
    for name in ("samples.jsonl", "settings.json"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "undisturbed" / name).read_bytes()


def test_texts_end_at_the_first_end_mark_and_are_what_their_ids_say(
    tmp_path: Path, inputs: dict[str, Artifact]
):
    tokenizer = load_tokenizer(inputs["tokens"].path / "tokenizer")
    texts = run(tmp_path / "out", inputs, count=200, seeds=(0,))
    for text in texts:
        assert text.ids is not None
        assert END not in text.ids
        assert text.text == tokenizer.decode(text.ids)
    lengths = {len(text.ids or ()) for text in texts}
    assert max(lengths) == LENGTH
    assert len(lengths) > 1


def test_settings_hold_what_made_the_samples(tmp_path: Path, inputs: dict[str, Artifact]):
    ema, raw = tmp_path / "ema", tmp_path / "raw"
    assert run(ema, inputs) != run(raw, inputs, weights="raw")
    first, second = (json.loads((out / "settings.json").read_text()) for out in (ema, raw))
    assert (first["weights"], second["weights"]) == ("ema", "raw")
    assert first["weights_digest"] != second["weights_digest"]
    assert first["inputs"]["model"] == inputs["model"].manifest.fingerprint
    assert first | {"guidance": 3.0, "gamma": 1.5, "steps": 4, "method": "sde"} == first
    assert "torch" in first["versions"]
    assert str(tmp_path) not in (ema / "settings.json").read_text()


def test_half_precision_is_that_of_the_blocks_and_is_said(
    tmp_path: Path, inputs: dict[str, Artifact], monkeypatch: pytest.MonkeyPatch
):
    forward, kinds = SwiGLU.forward, list[tuple[torch.dtype, torch.dtype]]()

    def watched(feed: SwiGLU, x: torch.Tensor) -> torch.Tensor:
        y = forward(feed, x)
        kinds.append((feed.out.weight.dtype, y.dtype))
        return y

    monkeypatch.setattr(SwiGLU, "forward", watched)
    whole, half = tmp_path / "whole", tmp_path / "half"
    texts = run(whole, inputs, count=5)
    assert set(kinds) == {(torch.float32, torch.float32)}
    kinds.clear()
    assert run(half, inputs, count=5, precision="bf16") != texts
    assert set(kinds) == {(torch.float32, torch.bfloat16)}
    first, second = (json.loads((out / "settings.json").read_text()) for out in (whole, half))
    assert second == first | {"precision": "bf16"}


def test_pairs_give_one_text_per_row_after_its_source(tmp_path: Path, pairs: dict[str, Artifact]):
    texts = run(tmp_path / "out", pairs, seeds=(3,), method="ode", input_guidance=2.0)
    assert [text.id for text in texts] == list(range(len(PAIRS)))
    assert [(text.source, text.reference) for text in texts] == PAIRS
    assert all(len(text.ids or ()) <= LENGTH - 3 for text in texts)
    run(tmp_path / "small", pairs, batch=2, seeds=(3,), method="ode", input_guidance=2.0)
    assert (tmp_path / "small" / "samples.jsonl").read_bytes() == (
        tmp_path / "out" / "samples.jsonl"
    ).read_bytes()


def test_the_source_bears_on_the_text(tmp_path: Path, pairs: dict[str, Artifact]):
    tokens = pairs["tokens"]
    other = make_latents(tmp_path / "latents", tokens, PAIR_SIZE, seed=5)
    first = run(tmp_path / "a", pairs, seeds=(3,))
    second = run(tmp_path / "b", pairs | {"latents": other}, seeds=(3,))
    assert [text.text for text in first] != [text.text for text in second]


def test_another_vocabulary_or_length_is_refused(tmp_path: Path, inputs: dict[str, Artifact]):
    words = make_tokens(tmp_path / "words", TEXT, words=[*WORDS, "more"], length=LENGTH)
    with pytest.raises(Failed, match=r"vocabulary size 33.*vocabulary size 34"):
        run(tmp_path / "a", inputs | {"tokens": make_artifact(words, "tokenize")})
    longer = make_tokens(tmp_path / "longer", TEXT, words=WORDS, length=2 * LENGTH)
    with pytest.raises(Failed, match=r"row length 8.*row length 16"):
        run(tmp_path / "b", inputs | {"tokens": make_artifact(longer, "tokenize")})


def test_another_encoder_or_width_is_refused(tmp_path: Path, pairs: dict[str, Artifact]):
    facts = dict(pairs["latents"].manifest.facts)
    other = make_artifact(pairs["latents"].path, "encode", facts=facts | {"encoder": "another"})
    with pytest.raises(Failed, match=r"encoder toy.*encoder another"):
        run(tmp_path / "a", pairs | {"latents": other})
    wide = make_model(tmp_path / "wide", pairs["tokens"], width=2 * WIDTH)
    with pytest.raises(Failed, match=r"width 12.*width 6"):
        run(tmp_path / "b", pairs | {"model": wide})
    bare = {role: artifact for role, artifact in pairs.items() if role != "latents"}
    with pytest.raises(Failed, match="pairs"):
        run(tmp_path / "c", bare)


def test_other_model_sizes_and_absent_averages_are_refused(tmp_path: Path, inputs: dict[str, Artifact]):
    model = make_model(tmp_path / "train", inputs["tokens"])
    card = json.loads((model.path / "model.json").read_text())
    card["model"]["hidden"] = 32
    (model.path / "model.json").write_text(json.dumps(card))
    with pytest.raises(Failed, match="hidden is 16 in the weights and 32 in the model"):
        run(tmp_path / "a", inputs | {"model": model})
    lacking = make_model(tmp_path / "lacking", inputs["tokens"])
    (lacking.path / "checkpoints" / "step_3" / "ema.safetensors").unlink()
    with pytest.raises(Failed, match="ema weights"):
        run(tmp_path / "b", inputs | {"model": lacking})
    assert len(run(tmp_path / "c", inputs)) == 40


def test_seeds_are_given_once(tmp_path: Path, inputs: dict[str, Artifact]):
    with pytest.raises(Misconfigured, match=r"\[1, 1\]"):
        run(tmp_path / "a", inputs, seeds=(1, 1))


def test_numbers_that_are_not_finite_stop_the_stage(tmp_path: Path, inputs: dict[str, Artifact]):
    explosive = make_model(
        tmp_path / "train",
        inputs["tokens"],
        objective=ObjectiveConfig(padding="eos", noise_scale=1e38, min_gap=1e-30),
    )
    with pytest.raises(Failed, match="not finite"):
        run(tmp_path / "out", inputs | {"model": explosive}, steps=8)
    assert not (tmp_path / "out" / "samples.jsonl").exists()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor:UserWarning", "ignore:`torch.jit.script:DeprecationWarning"
)
def test_a_compiled_model_samples_the_same_texts(tmp_path: Path, inputs: dict[str, Artifact]):
    """A last batch of another size included."""
    context = make_context(tmp_path / "compiled", inputs)
    compute = SampleCompute(device="cpu", threads=1, batch=16, compile=True)
    counters.clear()
    sample.run(setting(), replace(context, compute=compute))
    assert counters["stats"]["unique_graphs"] == 2
    assert read_texts(tmp_path / "compiled" / "samples.jsonl") == run(tmp_path / "plain", inputs)
