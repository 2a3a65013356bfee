"""Whatever is wrong with an artifact is named, file, shard and row, and looking changes nothing."""

import json
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from damage import HARM, flip, halve, put
from stored import describe, key_of, listing

from elf.cache.errors import Damaged
from elf.cache.layout import ArrayLayout, RaggedLayout
from elf.cache.recording import records
from elf.cache.store import Artifact, Store
from elf.cache.uses import Place
from elf.cache.verifying import Verified, verify_artifact, verify_sample

PLACE: Place = "encode", key_of("rows")
LENGTHS = np.array([3, 0, 8, 5, 100, 1, 60, 64], np.int32)


@pytest.fixture(scope="module")
def made(
    tmp_path_factory: pytest.TempPathFactory,
    draw: Callable[..., np.ndarray],
    rows_into: Callable[..., None],
    ragged_into: Callable[..., None],
) -> Path:
    """A store with an artifact of 12 fixed rows in 4 shards and of 8 ragged rows in 2."""
    root = tmp_path_factory.mktemp("made")
    folder = root / "encode" / PLACE[1]
    rows_into(folder / "plain", ArrayLayout(12, 4, 8, "float16", 3), draw((12, 4, 8), "float16"))
    ragged = [draw((length, 8), "bfloat16", seed) for seed, length in enumerate(LENGTHS)]
    ragged_into(folder / "target", RaggedLayout(LENGTHS, 100, 8, "bfloat16", 128), ragged)
    (folder / "aux").mkdir()
    (folder / "aux" / "log.txt").write_text("a log")
    describe(folder, PLACE)
    return root


@pytest.fixture
def artifact(made: Path, tmp_path: Path) -> Artifact:
    """A copy of it to harm."""
    shutil.copytree(made, tmp_path / "store")
    return open_again(tmp_path / "store" / "encode" / PLACE[1])


def open_again(folder: Path) -> Artifact:
    found = Store(folder.parent.parent).find(*PLACE)
    assert found is not None
    return found


@pytest.mark.parametrize("name", ["plain/c/1/0/0", "plain/parts/1.json", "plain/zarr.json"])
@pytest.mark.parametrize(
    "check", [verify_artifact, partial(verify_sample, rows=4, seed=0)], ids=["all", "sample"]
)
def test_a_folder_in_the_place_of_a_file_is_a_fault_among_others(
    artifact: Artifact, name: str, check: Callable[[Artifact], Verified]
) -> None:
    (artifact.path / name).unlink()
    (artifact.path / name).mkdir()
    flip(artifact.path / "target" / "zarr.json")
    faults = " ".join(check(artifact).faults)
    assert str(artifact.path / name) in faults
    assert "target" in faults


def test_a_folder_in_the_place_of_a_manifest(artifact: Artifact) -> None:
    (artifact.path / "manifest.json").unlink()
    (artifact.path / "manifest.json").mkdir()
    with pytest.raises(Damaged, match="is a folder, not a file"):
        open_again(artifact.path)


def test_the_digest_of_a_shard_is_that_of_what_was_to_be_written(artifact: Artifact) -> None:
    """A byte that the disk lost between writing and finishing is found out, not believed."""
    shard = artifact.path / "plain" / "c" / "1" / "0" / "0"
    flip(shard)
    assert records(artifact.path).files == artifact.manifest.files
    assert any("1/0/0" in fault for fault in verify_artifact(artifact).faults)


def test_what_is_right_is_found_right_and_nothing_changes(artifact: Artifact) -> None:
    before = listing(artifact.path.parent.parent)
    read: list[int] = []
    whole = verify_artifact(artifact, read.append)
    assert (whole.faults, whole.rows) == ((), 20)
    assert whole.bytes == sum(read) == sum(file.stat().st_size for file in payload(artifact))
    sampled = verify_sample(artifact, rows=5, seed=0)
    assert (sampled.faults, sampled.rows) == ((), 10)
    assert sampled.bytes < whole.bytes
    assert verify_sample(artifact, rows=99, seed=0).rows == 20
    assert listing(artifact.path.parent.parent) == before


def payload(artifact: Artifact) -> list[Path]:
    return [path for path in artifact.path.rglob("*") if path.is_file() and path.name != "manifest.json"]


def row_place(row: int) -> int:
    """Where in its shard of three a fixed row begins, in bytes."""
    return row % 3 * 4 * 8 * 2


def test_a_flipped_bit_is_named_with_its_file_shard_and_row(artifact: Artifact) -> None:
    shard = artifact.path / "plain" / "c" / "2" / "0" / "0"
    flip(shard, row_place(7) + 9)
    faults = " ".join(verify_artifact(artifact).faults)
    assert f"{shard} has digest" in faults
    assert (
        f"Shard 2 of {artifact.path / 'plain'} holds rows that have changed since they were written: 7."
        in faults
    )


def test_changed_rows_of_one_shard_are_named_together(artifact: Artifact) -> None:
    shard = artifact.path / "target" / "tokens" / "c" / "1" / "0"
    put(shard, bytes(124 * 16) + shard.read_bytes()[124 * 16 :])
    (changed, rows) = verify_artifact(artifact).faults
    assert f"{shard} has digest" in changed
    assert "Shard 1" in rows
    assert rows.endswith(": 6, 7.")


@pytest.mark.parametrize("harm", HARM)
@pytest.mark.parametrize("sample", [None, 1])
def test_every_harm_to_a_store_is_named(artifact: Artifact, harm: str, sample: int | None) -> None:
    HARM[harm][0](artifact.path / "plain")
    verified = verify_artifact(artifact) if sample is None else verify_sample(artifact, rows=12, seed=0)
    faults = verified.faults
    assert faults
    assert any(
        "plain/c/1/0/0" in fault or "plain/zarr.json" in fault or "hard 1 of" in fault for fault in faults
    )


@pytest.mark.parametrize(
    ("harm", "named"),
    [
        (lambda path: flip(path / "plain" / "crc" / "1.npy", 130), "crc/1.npy has digest"),
        (lambda path: (path / "plain" / "crc" / "1.npy").unlink(), "Shard 1 of .* has no readable record"),
        (
            lambda path: halve(path / "target" / "lengths" / "c" / "0"),
            "lengths/c/0 holds 16 bytes, the manifest",
        ),
        (lambda path: flip(path / "target" / "starts" / "c" / "0"), "starts/c/0 has digest"),
        (lambda path: (path / "extra").write_text("x"), "extra is not named in the manifest"),
        (lambda path: (path / "plain" / "link").symlink_to("c"), "is a link or a special file"),
    ],
)
def test_other_files_are_named_too(artifact: Artifact, harm: Callable[[Path], object], named: str) -> None:
    harm(artifact.path)
    for verified in (verify_artifact(artifact), verify_sample(artifact, rows=12, seed=0)):
        assert any(re.search(named, fault) for fault in verified.faults), verified.faults


def test_a_record_that_disagrees_with_the_manifest_is_named(artifact: Artifact) -> None:
    record = artifact.path / "plain" / "parts" / "1.json"
    plain = json.loads(record.read_text())
    record.write_text(json.dumps(plain | {"digest": "xxh3:" + "0" * 32}))
    faults = " ".join(verify_artifact(artifact).faults)
    assert "The record of shard 1 of" in faults
    assert "parts/1.json has digest" in faults


def test_a_sample_is_of_its_seed(artifact: Artifact) -> None:
    flip(artifact.path / "plain" / "c" / "0" / "0" / "0", row_place(1))
    found = [bool(verify_sample(artifact, rows=4, seed=seed).faults) for seed in range(6)]
    assert found == [bool(verify_sample(artifact, rows=4, seed=seed).faults) for seed in range(6)]
    assert set(found) == {True, False}


def test_an_artifact_without_stores_is_sampled_by_names_and_sizes(tmp_path: Path) -> None:
    folder = tmp_path / "train" / key_of("weights")
    folder.mkdir(parents=True)
    (folder / "weights").write_bytes(b"abcdef")
    describe(folder, ("train", key_of("weights")))
    made = Store(tmp_path).find("train", key_of("weights"))
    assert made is not None
    flip(folder / "weights", 0)
    assert verify_sample(made, rows=9, seed=0).faults == ()
    assert "weights has digest" in verify_artifact(made).faults[0]
    halve(folder / "weights")
    assert "holds 3 bytes" in verify_sample(made, rows=9, seed=0).faults[0]
