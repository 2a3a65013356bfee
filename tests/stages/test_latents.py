"""Latents and tokens as batches: the right view at the right place, and nothing that does not fit."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from toy_training import SMALL, Corpus, finish, make_latents, make_tokens

from elf.cache.rows import RaggedRows, Rows
from elf.cache.store import Artifact
from elf.pipeline.errors import Failed
from elf.stages.latents import LatentRows, Scale, open_latents, same_kind
from elf.stages.train_settings import Latents

PAIRS = replace(SMALL, max_source=3)
MEASURED = Latents(std="measured")


def opened(
    corpus: Corpus, settings: Latents | Scale = MEASURED, *, drops: bool = False, padding: str = "eos"
) -> LatentRows:
    inputs = corpus.inputs
    return open_latents(inputs["tokens"], inputs["latents"], settings, drops=drops)


def read(latents: LatentRows, rows: list[int], dropped: list[bool] | None = None):
    raw = latents.read(
        np.array(rows), torch.tensor(dropped or [False] * len(rows)), latents.make_buffer(len(rows) + 2)
    )
    return latents.normalise(raw, torch.device("cpu"))


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_text_is_normalised_on_reading(tmp_path: Path, dtype: str) -> None:
    tokens = make_tokens(tmp_path / "tokens", SMALL)
    stored = make_latents(tmp_path / "latents", tokens, SMALL, dtype=dtype)
    latents = open_latents(tokens, stored, Scale(0.5, 1.5), drops=False)
    batch = read(latents, [22, 0, 7])
    source = Rows.open(stored.path / "plain")
    wanted = np.stack([(source[row].astype(np.float32) - 0.5) / 1.5 for row in (22, 0, 7)])
    torch.testing.assert_close(batch.x_BLD, torch.from_numpy(wanted), rtol=1e-6, atol=1e-6)
    assert batch.x_BLD.dtype == torch.float32
    assert batch.ids_BL.dtype == torch.int64
    assert batch.ids_BL.tolist() == latents.tokens.ids(np.array([22, 0, 7])).tolist()
    assert batch.condition_length_B.tolist() == [0, 0, 0]
    assert batch.length_B.tolist() == [8, 8, 8]


def test_measured_means_unit_size(tmp_path: Path) -> None:
    latents = opened(Corpus.make(tmp_path))
    x = read(latents, list(range(23))).x_BLD
    assert x.mean().item() == pytest.approx(0, abs=1e-3)
    assert x.std().item() == pytest.approx(1, abs=2e-3)


def test_a_dropped_condition_chooses_the_target_that_never_saw_it(tmp_path: Path) -> None:
    corpus = Corpus.make(tmp_path, PAIRS)
    latents = opened(corpus, Scale(0.0, 1.0), drops=True)
    batch = read(latents, [4, 4, 9], [False, True, False])
    path = corpus.inputs["latents"].path
    views = {name: RaggedRows.open(path / name) for name in ("condition", "target_given_condition", "target")}
    for place, (row, dropped) in enumerate([(4, False), (4, True), (9, False)]):
        start = int(batch.condition_length_B[place])
        x = batch.x_BLD[place].numpy()
        condition = np.zeros((start, 6), np.float32) if dropped else views["condition"][row]
        target = views["target" if dropped else "target_given_condition"][row]
        np.testing.assert_array_equal(x[:start], condition)
        np.testing.assert_array_equal(x[start:], target)
        assert (x[start:].mean() > 50) == dropped, "the toy's views lie 100 apart"


def test_the_same_buffer_serves_again(tmp_path: Path) -> None:
    latents = opened(Corpus.make(tmp_path))
    buffer, none = latents.make_buffer(3), torch.zeros(3, dtype=torch.bool)
    first = latents.normalise(latents.read(np.array([1, 2, 3]), none, buffer), torch.device("cpu"))
    kept = first.x_BLD.clone()
    latents.read(np.array([4, 5, 6]), none, buffer)
    torch.testing.assert_close(first.x_BLD, kept, rtol=0, atol=0)


def changed(artifact: Artifact, facts: dict[str, Any]) -> Artifact:
    """The same folder under a manifest that says something else."""
    manifest = artifact.manifest
    (artifact.path / "manifest.json").unlink()
    return finish(artifact.path, "encode", {**manifest.facts, **facts}, manifest.inputs)


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"width": 7}, r"width \(view plain\) is 6, that of their own manifest is 7"),
        ({"rows": 24}, r"rows \(view plain\) is 23, that of their own manifest is 24"),
        ({"dtype": "float32"}, r"dtype \(view plain\) is float16, that of their own manifest is float32"),
    ],
)
def test_a_store_other_than_its_manifest_is_refused(
    tmp_path: Path, facts: dict[str, Any], words: str
) -> None:
    inputs = Corpus.make(tmp_path).inputs
    latents = changed(inputs["latents"], facts)
    with pytest.raises(Failed, match=words):
        opened(Corpus({**inputs, "latents": latents}))


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (replace(SMALL, rows=24), r"rows \(view plain\) is 24, that of the tokens is 23"),
        (replace(SMALL, length=9), r"length \(view plain\) is 9, that of the tokens is 8"),
    ],
)
def test_latents_of_another_shape_are_refused(tmp_path: Path, other, words: str) -> None:
    tokens = make_tokens(tmp_path / "tokens", SMALL)
    latents = make_latents(tmp_path / "latents", tokens, other)
    with pytest.raises(Failed, match=words):
        opened(Corpus({"tokens": tokens, "latents": latents}))


def test_latents_of_other_tokens_are_refused(tmp_path: Path) -> None:
    one, two = Corpus.make(tmp_path / "a"), make_tokens(tmp_path / "b", SMALL, seed=9)
    with pytest.raises(
        Failed, match=f"tokens' key is {one.inputs['tokens'].manifest.fingerprint}, that of .* is "
    ):
        opened(Corpus({"tokens": two, "latents": one.inputs["latents"]}))


@pytest.mark.parametrize("settings", [Latents(std=0.2), Latents(std=20.0), Latents(mean=5.0, std=2.0)])
def test_a_scale_far_from_the_stores_is_refused(tmp_path: Path, settings: Latents) -> None:
    with pytest.raises(
        Failed, match=r"mean .* std .*, but the stored latents have mean -?0.1\d+ and std 1.9\d+"
    ):
        opened(Corpus.make(tmp_path), settings)


@pytest.mark.parametrize("settings", [MEASURED, Latents(std=0.2)])
def test_a_store_of_one_state_is_refused(tmp_path: Path, settings: Latents) -> None:
    inputs = Corpus.make(tmp_path).inputs
    latents = changed(inputs["latents"], {"mean": 0.5, "std": 0.0})
    with pytest.raises(Failed, match=r"std of the stored latents is 0 \(their mean is 0\.5\)"):
        opened(Corpus({**inputs, "latents": latents}), settings)


def test_a_deviation_that_is_tiny_is_measured_all_the_same(tmp_path: Path) -> None:
    inputs = Corpus.make(tmp_path).inputs
    latents = changed(inputs["latents"], {"mean": 0.5, "std": 1e-30})
    assert opened(Corpus({**inputs, "latents": latents})).scale == Scale(0.5, 1e-30)


def test_a_scale_near_the_stores_is_a_choice(tmp_path: Path) -> None:
    assert opened(Corpus.make(tmp_path), Latents(mean=0.1, std=3.0)).scale == Scale(0.1, 3.0)


def test_dropping_needs_the_view_for_it(tmp_path: Path) -> None:
    corpus = Corpus.make(tmp_path, PAIRS)
    (corpus.inputs["latents"].path / "target").rename(tmp_path / "away")
    opened(corpus)
    with pytest.raises(
        Failed, match=r"no view 'target', only condition, target_given_condition; .*dropout is not 0"
    ):
        opened(corpus, drops=True)


def test_every_position_of_a_pair_needs_its_state(tmp_path: Path) -> None:
    tokens = make_tokens(tmp_path / "tokens", PAIRS)
    longer = make_tokens(tmp_path / "longer", replace(PAIRS, max_source=5), seed=1)
    latents = make_latents(tmp_path / "latents", longer, PAIRS)
    manifest = latents.manifest
    (latents.path / "manifest.json").unlink()
    renamed = finish(latents.path, "encode", manifest.facts, {"tokens": tokens.manifest.fingerprint})
    with pytest.raises(
        Failed, match=r"number of states in row \d+ \(view condition\) is \d, that of the tokens is \d"
    ):
        opened(Corpus({"tokens": tokens, "latents": renamed}))


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (replace(SMALL, width=5), r"width \(held-out split\) is 5, that of the training split is 6"),
        (replace(SMALL, length=9), r"length \(held-out split\) is 9"),
        (replace(SMALL, vocabulary=41), r"vocabulary.size \(held-out split\) is 41"),
    ],
)
def test_a_held_out_split_of_another_kind_is_refused(tmp_path: Path, other, words: str) -> None:
    train, heldout = opened(Corpus.make(tmp_path / "a")), opened(Corpus.make(tmp_path / "b", other))
    with pytest.raises(Failed, match=words):
        same_kind(train, heldout)
