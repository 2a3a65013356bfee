"""Statistics of a store are those of its numbers, and those that training divides by."""

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest
from damage import put
from encoded import find, make_encoded

from elf.cache.errors import Damaged
from elf.cache.rows import RaggedRows, Rows
from elf.cache.store import Artifact, Store
from elf.pipeline.errors import Failed, Misconfigured
from elf.stages.channels import Statistics, measure_channels
from elf.stages.latents import choose_scale
from elf.stages.rows import TokenRows
from elf.stages.train_settings import Latents
from elf.stages.views import ViewName, ViewRows


def measured(artifact: Artifact) -> Statistics:
    return measure_channels(artifact, Store(artifact.path.parent.parent))


def stored_numbers(artifact: Artifact, name: ViewName) -> np.ndarray:
    """The states of tokens of one view, (tokens, D) float64, read row by row."""
    key = artifact.manifest.inputs["tokens"]
    view = ViewRows(name, TokenRows.open(artifact.path.parent.parent / "tokenize" / key))
    rows = (Rows if name == "plain" else RaggedRows).open(artifact.path / name)
    valid = view.valid(np.arange(len(rows)))
    parts = [rows[row][: valid[row]] for row in range(len(rows))]
    raw = np.concatenate(parts)
    if rows.dtype == "bfloat16":
        raw = (raw.astype(np.uint32) << 16).view(np.float32)
    return raw.astype(np.float64)


@pytest.mark.parametrize(("dtype", "paired"), [("float16", False), ("bfloat16", True)])
def test_every_channel_is_that_of_the_stored_numbers(tmp_path: Path, dtype: str, paired: bool) -> None:
    artifact = make_encoded(tmp_path, paired=paired, dtype=dtype)
    found = measured(artifact)
    names: tuple[ViewName, ...] = ("condition", "target_given_condition", "target") if paired else ("plain",)
    assert tuple(found.views) == names
    numbers = {name: stored_numbers(artifact, name) for name in names}
    for name, channels in found.views.items():
        check_channels(channels, numbers[name])
    seen = np.concatenate([numbers[name] for name in names if name != "target"])
    check_channels(found.channels, seen)
    assert found.whole.count == seen.size
    assert found.whole.mean == pytest.approx(seen.mean(), rel=1e-9)
    assert found.whole.std == pytest.approx(seen.std(), rel=1e-9)
    assert found.agrees


def check_channels(channels, numbers: np.ndarray) -> None:
    assert len(channels) == numbers.shape[1]
    assert {each.count for each in channels} == {len(numbers)}
    assert [each.mean for each in channels] == pytest.approx(numbers.mean(axis=0).tolist(), rel=1e-9)
    assert [each.std for each in channels] == pytest.approx(numbers.std(axis=0).tolist(), rel=1e-9)
    assert [each.low for each in channels] == numbers.min(axis=0).tolist()
    assert [each.high for each in channels] == numbers.max(axis=0).tolist()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return make_encoded(tmp_path_factory.mktemp("made"), dtype="float32")


@pytest.fixture
def artifact(made: Artifact, tmp_path: Path) -> Artifact:
    """A copy to spoil."""
    shutil.copytree(made.path.parent.parent, tmp_path / "store")
    return find(tmp_path / "store", made.manifest.fingerprint)


def test_training_divides_by_what_is_measured(artifact: Artifact) -> None:
    found = measured(artifact)
    mean, std = artifact.manifest.facts["mean"], artifact.manifest.facts["std"]
    assert isinstance(mean, float)
    assert isinstance(std, float)
    scale = choose_scale(Latents(std="measured"), mean, std)
    assert scale.mean == pytest.approx(found.whole.mean, rel=1e-12)
    assert scale.std == pytest.approx(found.whole.std, rel=1e-12)


def test_facts_that_say_otherwise_are_found(artifact: Artifact) -> None:
    std = artifact.manifest.facts["std"]
    assert isinstance(std, float)
    wrong = dataclasses.replace(artifact.manifest, facts={**artifact.manifest.facts, "std": std * 1.00001})
    assert not measured(Artifact(artifact.path, wrong)).agrees


@pytest.mark.parametrize("number", [0.5, np.nan, np.inf])
def test_a_row_that_has_changed_becomes_no_number(artifact: Artifact, number: float) -> None:
    (shard,) = artifact.path.glob("*/c/0/0/0")
    put(shard, np.float32(number).tobytes() + shard.read_bytes()[4:])
    with pytest.raises(Damaged, match=f"Row 0 in shard 0 of the store {shard.parents[3]} has changed"):
        measured(artifact)


def test_every_shard_is_told(artifact: Artifact) -> None:
    told: list[int] = []
    measure_channels(artifact, Store(artifact.path.parent.parent), told.append)
    assert sum(told) == artifact.manifest.facts["shards"]


def test_what_cannot_be_measured_is_refused(artifact: Artifact) -> None:
    root = artifact.path.parent.parent
    store = Store(root)
    encoder = store.find("fetch", artifact.manifest.inputs["encoder"])
    assert encoder is not None
    with pytest.raises(Misconfigured, match="holds no encoder states"):
        measure_channels(encoder, store)
    silent = dataclasses.replace(artifact.manifest, facts={})
    with pytest.raises(Failed, match="no mean and deviation"):
        measure_channels(Artifact(artifact.path, silent), store)
    shutil.rmtree(root / "tokenize")
    with pytest.raises(Failed, match=r"made from tokens [0-9a-f]{12}, which .* does not hold"):
        measured(find(root, artifact.manifest.fingerprint))
