"""Rows by reads are rows by maps, and what a disk refuses is an error, not the end of the process."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elf.cache.errors import CacheError, Damaged
from elf.cache.layout import ArrayLayout, RaggedLayout
from elf.cache.prefetch import Prefetch, make_buffers
from elf.cache.rows import RaggedRows, Rows

LAYOUT = ArrayLayout(rows=40, length=8, width=4, dtype="float16", shard_rows=4)
ORDER = [39, 3, 0, 17, 17, 8, 21]


@pytest.fixture
def data(draw: Callable[..., Any]) -> Any:
    return draw((40, 8, 4), "float16")


@pytest.fixture
def folder(tmp_path: Path, data: Any, rows_into: Callable[..., None]) -> Path:
    rows_into(tmp_path, LAYOUT, data)
    return tmp_path


def open_files(folder: Path) -> int:
    return sum(str(folder) in str(each.resolve()) for each in Path("/proc/self/fd").iterdir())


def test_rows_are_those_of_the_maps(folder: Path, data: Any) -> None:
    rows = Rows.open(folder, reader="pread")
    assert np.array_equal(rows[5], data[5])
    with pytest.raises(ValueError, match="read-only"):
        rows[5][0, 0] = 1
    out = np.empty((8, 8, 4), np.float16)
    assert rows.gather(ORDER, out).tolist() == [8] * 7
    assert np.array_equal(out[:7], data[ORDER])
    with Prefetch(rows, [ORDER, ORDER[::-1]], buffers=make_buffers(rows, batch=7)) as batches:
        assert [np.array_equal(batch.rows, data[batch.indices]) for batch in batches] == [True, True]
    assert np.array_equal(rows.proven(5), data[5])


def test_ragged_rows_and_empty_ones_too(
    tmp_path: Path, draw: Callable[..., Any], ragged_into: Callable[..., None]
) -> None:
    lengths = np.array([3, 0, 7, 1], np.int32)
    data = [draw((int(n), 4), "bfloat16", seed) for seed, n in enumerate(lengths)]
    ragged_into(tmp_path, RaggedLayout(lengths, 16, 4, "bfloat16", 128), data)
    rows = RaggedRows.open(tmp_path, reader="pread")
    out = np.ones((4, 16, 4), np.uint16)
    assert rows.gather([2, 1, 0, 3], out).tolist() == [7, 0, 3, 1]
    assert np.array_equal(out[0, :7], data[2])
    assert not out[0, 7:].any()
    assert not out[1].any()


def test_files_are_closed_once_others_are_used(folder: Path, data: Any) -> None:
    rows = Rows.open(folder, reader="pread", max_open=3)
    out = np.empty((40, 8, 4), np.float16)
    rows.gather(range(40), out)
    assert np.array_equal(out, data)
    assert open_files(folder) == 3
    del rows
    assert open_files(folder) == 0


def test_a_refusing_disk_is_told_in_words(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = Rows.open(folder, reader="pread")

    def refuse(descriptor: int, buffers: Any, offset: int) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "preadv", refuse)
    with pytest.raises(CacheError, match=r"c/1/0/0 cannot be read at byte 64: Input/output error"):
        rows.gather([5], np.empty((1, 8, 4), np.float16))


def test_reads_that_give_less_are_gone_on_with(
    folder: Path, data: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    preadv = os.preadv

    def little(descriptor: int, buffers: list[Any], offset: int) -> int:
        return preadv(descriptor, [buffers[0][:7]], offset)

    monkeypatch.setattr(os, "preadv", little)
    out = np.empty((7, 8, 4), np.float16)
    Rows.open(folder, reader="pread").gather(ORDER, out)
    assert np.array_equal(out, data[ORDER])


def test_a_file_cut_meanwhile_is_damaged(folder: Path) -> None:
    rows = Rows.open(folder, reader="pread")
    path = folder / "c/1/0/0"
    path.chmod(0o644)
    os.truncate(path, 100)
    with pytest.raises(Damaged, match="ends at byte 100, in the middle of a row"):
        rows.gather([5], np.empty((1, 8, 4), np.float16))
