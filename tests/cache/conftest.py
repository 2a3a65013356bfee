"""Small stores and manifests for the tests of elf.cache."""

import hashlib
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elf.cache.files import write_atomic
from elf.cache.layout import ArrayLayout, DType, RaggedLayout
from elf.cache.manifest import Fingerprint, Manifest, Provenance, merkle_root
from elf.cache.recording import records
from elf.cache.shards import finalise, write_metadata, write_shard

PROVENANCE = Provenance(
    git=None,
    dirty=None,
    argv=("elf", "run"),
    host="h",
    python="3.11",
    versions={"numpy": "2"},
    started="2026-01-01T00:00:00+00:00",
    seconds=1.5,
)


def numbers(shape: tuple[int, ...], dtype: DType, seed: int = 0) -> Any:
    """Normal draws in the stored dtype; bfloat16 as its bits."""
    wide = np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
    return (wide.view(np.uint32) >> 16).astype(np.uint16) if dtype == "bfloat16" else wide.astype(dtype)


def build_rows(folder: Path, layout: ArrayLayout, data: Any, *, block: int = 3) -> None:
    """Write `data` (rows, length, width) as a finished store."""
    write_metadata(folder, layout)
    for shard in range(layout.shards):
        part = data[layout.rows_of(shard).start : layout.rows_of(shard).stop]
        write_shard(folder, layout, shard, (part[i : i + block] for i in range(0, len(part), block)))
    finalise(folder, layout)


def build_ragged(folder: Path, layout: RaggedLayout, rows: list[Any]) -> None:
    """Write rows (tokens, width) as a finished store."""
    write_metadata(folder, layout)
    for shard in range(layout.shards):
        write_shard(folder, layout, shard, (rows[row] for row in layout.rows_of(shard)))
    finalise(folder, layout)


def manifest_of(path: Path, stage: str, key: Fingerprint) -> Manifest:
    """A manifest of what lies in `path`."""
    files, aux = records(path)
    return Manifest(
        stage=stage,
        version=1,
        fingerprint=key,
        identity={"length": 8, "pooling": None},
        config={"length": 8, "batch": 3},
        inputs={"tokens": key_of("tokens")},
        content=merkle_root(files),
        files=files,
        aux=aux,
        facts={"rows": 3, "loss": [1.5, 2.0]},
        provenance=PROVENANCE,
    )


def key_of(text: str) -> Fingerprint:
    """A key made of a word."""
    return Fingerprint(hashlib.sha256(text.encode()).hexdigest())


def fill_slowly(path: Path) -> None:
    """Ten parts of a payload with time between them; parts that are there are kept."""
    for i in range(10):
        if not (path / f"part{i}").exists():
            time.sleep(0.03)
            write_atomic(path / f"part{i}", str(i) * 1000)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small disk needs root")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


@pytest.fixture(scope="session")
def draw() -> Callable[..., Any]:
    return numbers


@pytest.fixture(scope="session")
def rows_into() -> Callable[..., None]:
    return build_rows


@pytest.fixture(scope="session")
def ragged_into() -> Callable[..., None]:
    return build_ragged


@pytest.fixture(scope="session")
def describe() -> Callable[[Path, str, Fingerprint], Manifest]:
    return manifest_of


@pytest.fixture(scope="session")
def named_key() -> Callable[[str], Fingerprint]:
    return key_of
