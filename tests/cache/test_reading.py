"""What reading promises whatever the store's size: every row proven once, open files and memory that stay flat."""

import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elf.cache.errors import Damaged
from elf.cache.layout import ArrayLayout
from elf.cache.prefetch import Prefetch, make_buffers
from elf.cache.rows import Reader, Rows

ROWS_A_SHARD, LENGTH, WIDTH = 16, 64, 32
SHARD_KB = ROWS_A_SHARD * LENGTH * WIDTH * 2 // 1024
READERS: tuple[Reader, ...] = ("map", "pread")


def make(folder: Path, shards: int, rows_into: Callable[..., None]) -> Path:
    layout = ArrayLayout(shards * ROWS_A_SHARD, LENGTH, WIDTH, "float16", ROWS_A_SHARD)
    data = np.full((layout.rows, LENGTH, WIDTH), 0.5, np.float16)
    rows_into(folder, layout, data, block=ROWS_A_SHARD)
    return folder


def flip(path: Path, place: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[place] ^= 1
    path.unlink()
    path.write_bytes(raw)


@pytest.mark.parametrize("reader", READERS)
def test_a_row_is_proven_when_it_is_first_read(
    tmp_path: Path, rows_into: Callable[..., None], reader: Reader
) -> None:
    make(tmp_path, 2, rows_into)
    flip(tmp_path / "c/1/0/0", 3 * LENGTH * WIDTH * 2)
    rows = Rows.open(tmp_path, reader=reader)
    out = np.empty((3, LENGTH, WIDTH), np.float16)
    rows.gather([0, 18, 20], out)
    for _ in range(2):
        with pytest.raises(Damaged, match="Row 19 in shard 1"):
            rows.gather([1, 19, 2], out)


def test_a_row_is_proven_once(
    tmp_path: Path, rows_into: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path, 2, rows_into)
    rows = Rows.open(tmp_path)
    proven: list[int] = []
    check = rows._check_row

    def noted(row: int, shard: int, tokens: Any) -> None:
        proven.append(row)
        check(row, shard, tokens)

    monkeypatch.setattr(rows, "_check_row", noted)
    out = np.empty((4, LENGTH, WIDTH), np.float16)
    for batch in ([1, 30, 7, 1], [7, 2, 30, 8], [1, 2, 7, 8]):
        rows.gather(batch, out)
    assert sorted(set(proven)) == [1, 2, 7, 8, 30]
    assert len(proven) <= 6, "twice in one batch is the only time a row is proven twice"


def usage(folder: Path) -> tuple[int, int, int]:
    """Open files and maps of a store, and the kB of it that lie in this process's page tables."""
    files = 0
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # another thread closed it
            files += str(folder) in str(link.readlink())
    maps = resident = 0
    ours = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            ours = str(folder) in line
            maps += ours
        elif ours and line.startswith("Rss:"):
            resident += int(line.split()[1])
    return files, maps, resident


def private_kb() -> int:
    found = re.search(r"^RssAnon:\s+(\d+)", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1])


@pytest.mark.parametrize("reader", READERS)
def test_files_and_memory_stay_flat_as_the_store_grows(
    tmp_path: Path, rows_into: Callable[..., None], reader: Reader
) -> None:
    """Stores of 8 and 64 shards, read through in random order with room for 4."""
    room = 4
    grown: list[int] = []
    folders = {shards: make(tmp_path / str(shards), shards, rows_into) for shards in (8, 64)}
    for shards, folder in folders.items():
        before = private_kb()
        order = np.random.default_rng(0).permutation(shards * ROWS_A_SHARD).reshape(-1, 8)
        rows = Rows.open(folder, reader=reader, max_open=room)
        most = (0, 0, 0)
        with Prefetch(rows, order, buffers=make_buffers(rows, batch=8)) as batches:
            for number, batch in enumerate(batches):
                assert (batch.rows == 0.5).all()
                if number % 16 == 0:
                    most = tuple(map(max, most, usage(folder)))
        # On top of what is kept come one that is being opened and those whose last reader is not done.
        files, maps, resident = most
        assert 1 <= files <= room + (2 if reader == "map" else 8)
        assert maps <= (room + 2 if reader == "map" else 0)
        assert resident <= (room + 2) * (SHARD_KB + 8)
        grown.append(private_kb() - before)
    assert max(grown) < 2000 < 64 * SHARD_KB / 2, f"private memory grew with the store: {grown} kB"
