"""Encoding stored rows again tells a right store from one that other weights, tokens or hands made."""

import dataclasses
import shutil
from pathlib import Path

import pytest
import torch
from damage import flip
from encoded import find, make_encoded
from safetensors.torch import load_file, save_file

from elf.cache.errors import Damaged
from elf.cache.manifest import MANIFEST
from elf.cache.store import Artifact, Store
from elf.pipeline.errors import Failed, Misconfigured
from elf.stages.auditing import Audit, audit


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return make_encoded(tmp_path_factory.mktemp("text"))


@pytest.fixture
def artifact(text: Artifact, tmp_path: Path) -> Artifact:
    """A copy to spoil."""
    shutil.copytree(text.path.parent.parent, tmp_path / "store")
    return find(tmp_path / "store", text.manifest.fingerprint)


def audited(artifact: Artifact, *, rows: int = 4, seed: int = 0) -> Audit:
    return audit(artifact, Store(artifact.path.parent.parent), rows=rows, seed=seed)


def input_of(artifact: Artifact, role: str) -> Path:
    key = artifact.manifest.inputs[role]
    return next(artifact.path.parent.parent.glob(f"*/{key}"))


@pytest.mark.parametrize(("dtype", "paired"), [("float16", False), ("bfloat16", True)])
def test_a_right_store_is_within_its_tolerance(tmp_path: Path, dtype: str, paired: bool) -> None:
    done = audited(make_encoded(tmp_path, paired=paired, dtype=dtype), rows=99)
    names = ["condition", "target_given_condition", "target"] if paired else ["plain"]
    assert [view.view for view in done.views] == names
    assert done.faults == ()
    for view in done.views:
        assert view.rows >= 8
        assert view.equal == 1.0  # the same machine, the same arithmetic
        assert view.mean <= view.largest <= done.tolerance


def test_rows_are_those_of_the_seed(text: Artifact) -> None:
    assert audited(text, rows=2, seed=1) == audited(text, rows=2, seed=1)
    told: list[int] = []
    store = Store(text.path.parent.parent)
    assert audit(text, store, rows=3, seed=0, advance=told.append).views[0].rows == sum(told) == 3


def test_states_of_other_weights_are_found(artifact: Artifact) -> None:
    file = input_of(artifact, "encoder") / "data" / "model.safetensors"
    weights = load_file(file)
    weights["encoder.block.0.layer.0.SelfAttention.v.weight"] *= 1.5
    save_file(weights, file, {"format": "pt"})
    done = audited(artifact)
    assert done.views[0].beyond == done.views[0].rows == 4
    assert done.views[0].largest > 10 * done.tolerance
    digest, rows = done.faults
    assert "made by an encoder of digest xxh3:" in digest
    assert "4 of 4 rows of view plain are farther than 0.002" in rows
    assert f"row {done.views[0].worst} by" in rows


def test_a_rounding_of_weights_below_the_tolerance_is_only_named_by_its_digest(artifact: Artifact) -> None:
    file = input_of(artifact, "encoder") / "data" / "model.safetensors"
    weights = load_file(file)
    weights["shared.weight"] += torch.full_like(weights["shared.weight"], 1e-7)
    save_file(weights, file, {"format": "pt"})
    done = audited(artifact)
    assert done.views[0].beyond == 0
    assert len(done.faults) == 1


def test_a_row_that_is_not_what_was_recorded_is_damaged(artifact: Artifact) -> None:
    flip(artifact.path / "plain" / "c" / "0" / "0" / "0")
    with pytest.raises(Damaged, match="Row 0 in shard 0"):
        audited(artifact, rows=99)


def test_what_it_was_made_of_must_be_there(artifact: Artifact) -> None:
    shutil.rmtree(input_of(artifact, "encoder"))
    with pytest.raises(Failed, match=r"made from encoder [0-9a-f]{12}, which .* does not hold"):
        audited(artifact)


def test_tokens_that_came_out_otherwise_are_refused(artifact: Artifact, tmp_path: Path) -> None:
    tokens = input_of(artifact, "tokens")
    shutil.rmtree(tokens / "rows")
    more = make_encoded(tmp_path / "more", documents=12)
    for name in ("rows", "counts.json"):
        (input_of(more, "tokens") / name).rename(tokens / name)
    with pytest.raises(Failed, match=r"holds \d+ rows, but the tokens it was made from have \d+"):
        audited(artifact)


def test_settings_of_another_version_are_named(artifact: Artifact) -> None:
    manifest = dataclasses.replace(artifact.manifest, config={**artifact.manifest.config, "layers": 3})
    with pytest.raises(Failed, match=r"settings that this version does not know: .*layers"):
        audited(Artifact(artifact.path, manifest))


def test_only_encode_artifacts_are_audited(artifact: Artifact) -> None:
    tokens = artifact.manifest.inputs["tokens"]
    store = Store(artifact.path.parent.parent)
    path = store.path("tokenize", tokens) / MANIFEST
    text = path.read_text()
    found = store.find("tokenize", tokens)
    assert found is not None
    with pytest.raises(Misconfigured, match="holds no encoder states"):
        audit(found, store, rows=1, seed=0)
    assert path.read_text() == text
