"""A store is read as it was written, or refused by the name of what is wrong with it."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elf.cache.errors import Damaged
from elf.cache.layout import ArrayLayout, DType, RaggedLayout
from elf.cache.rows import RaggedRows, Rows

LAYOUT = ArrayLayout(rows=10, length=8, width=4, dtype="float32", shard_rows=4)


@pytest.fixture
def data(draw: Callable[..., Any]) -> Any:
    return draw((10, 8, 4), "float32")


@pytest.fixture
def folder(tmp_path: Path, data: Any, rows_into: Callable[..., None]) -> Path:
    rows_into(tmp_path / "store", LAYOUT, data)
    return tmp_path / "store"


def replace(path: Path, raw: bytes) -> None:
    path.unlink()
    path.write_bytes(raw)


def half(path: Path) -> None:
    replace(path, path.read_bytes()[: path.stat().st_size // 2])


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    replace(path, text.replace(old, new).encode())


def swap_index(path: Path) -> None:
    """Rows 0 and 1 exchanged by the index alone: valid zarr, but not rows in order."""
    raw = bytearray(path.read_bytes())
    end = len(raw) - 4 - 16 * 4
    raw[end : end + 8], raw[end + 16 : end + 24] = raw[end + 16 : end + 24], raw[end : end + 8]
    replace(path, bytes(raw))


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "shard cut": (lambda p: half(p / "c/1/0/0"), "Shard 1 of .* bytes instead of"),
    "shard empty": (lambda p: replace(p / "c/1/0/0", b""), "Shard 1 of .* holds 0 bytes"),
    "shard gone": (lambda p: (p / "c/1/0/0").unlink(), "Shard 1 of .* is missing"),
    "last shard gone": (lambda p: (p / "c/2/0/0").unlink(), "Shard 2 of .* is missing"),
    "shards exchanged": (lambda p: replace(p / "c/1/0/0", (p / "c/2/0/0").read_bytes()), "Shard 1 of"),
    "index of another order": (lambda p: swap_index(p / "c/1/0/0"), "Shard 1 of .* rows in order"),
    "description cut": (lambda p: half(p / "zarr.json"), r"zarr\.json is damaged"),
    "description gone": (lambda p: (p / "zarr.json").unlink(), r"zarr\.json is missing"),
    "more rows": (lambda p: edit(p / "zarr.json", "    10,", "    11,"), "Shard 2 of"),
    "fewer rows": (lambda p: edit(p / "zarr.json", "    10,", "    8,"), "more than the 2 shards"),
    "compressed": (lambda p: edit(p / "zarr.json", '"crc32c"', '"zstd"'), r"zarr\.json"),
    "another dtype": (lambda p: edit(p / "zarr.json", "float32", "int32"), r"zarr\.json.*int32"),
    "zero fill": (lambda p: edit(p / "zarr.json", '"NaN"', "0.0"), r"zarr\.json"),
    "no object": (lambda p: replace(p / "zarr.json", b"[]"), r"zarr\.json"),
    "shape of text": (lambda p: edit(p / "zarr.json", "    10,", '    "10",'), r"zarr\.json"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_store_is_refused_by_name(folder: Path, name: str) -> None:
    harm, message = DAMAGE[name]
    harm(folder)
    with pytest.raises(Damaged, match=message):
        Rows.open(folder)


def test_a_stray_temporary_file_disturbs_nobody(folder: Path, data: Any) -> None:
    (folder / "c/1/0/.tmp-12-ab").write_bytes(b"half")
    assert np.array_equal(Rows.open(folder)[4], data[4])


def test_rows_that_are_truly_zero_are_accepted(
    tmp_path: Path, data: Any, rows_into: Callable[..., None]
) -> None:
    data[4:8] = 0
    rows_into(tmp_path / "zeros", LAYOUT, data)
    rows = Rows.open(tmp_path / "zeros")
    assert not any(rows.proven(row).any() for row in range(4, 8))


def test_a_flipped_bit_is_found_and_its_row_named(folder: Path) -> None:
    path = folder / "c/1/0/0"
    raw = bytearray(path.read_bytes())
    raw[2 * 8 * 4 * 4 + 5] ^= 1
    replace(path, bytes(raw))
    rows = Rows.open(folder)
    assert np.array_equal(rows.proven(5), rows[5])
    with pytest.raises(Damaged, match="Row 6 in shard 1 of"):
        rows.proven(6)
    tokens = np.concatenate([rows[row] for row in range(4, 8)])
    with pytest.raises(Damaged, match="Row 6 in shard 1 of"):
        rows.prove_shard(1, tokens)


def test_proof_needs_its_records(folder: Path) -> None:
    rows = Rows.open(folder)
    (folder / "crc/2.npy").unlink()
    with pytest.raises(Damaged, match="Shard 2"):
        rows.proven(8)


def test_a_row_is_a_view_that_cannot_be_written(folder: Path, data: Any) -> None:
    rows = Rows.open(folder)
    assert rows.shape == (10, 8, 4) == (len(rows), *rows[0].shape)
    assert all(np.array_equal(rows[i], data[i]) for i in range(10))
    assert not rows[3].flags.owndata
    with pytest.raises(ValueError, match="read-only"):
        rows[3][0, 0] = 1


@pytest.mark.parametrize("row", [-1, 10])
def test_there_is_no_row_outside(folder: Path, row: int) -> None:
    rows = Rows.open(folder)
    with pytest.raises(IndexError, match=f"no row {row}"):
        rows[row]
    with pytest.raises(IndexError, match=f"no row {row}"):
        rows.gather([0, row], np.empty((2, 8, 4), np.float32))
    with pytest.raises(IndexError, match=f"no row {row}"):
        rows.willneed([row])


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 9), max_size=12), st.integers(1, 4))
def test_gather_fills_the_head_of_a_buffer(
    tmp_path_factory: pytest.TempPathFactory,
    draw: Callable[..., Any],
    rows_into: Callable[..., None],
    indices: list[int],
    max_open: int,
) -> None:
    data = draw((10, 8, 4), "float32")
    folder = tmp_path_factory.getbasetemp() / "gathered"
    if not folder.exists():
        rows_into(folder, LAYOUT, data)
    rows = Rows.open(folder, max_open=max_open)
    out = np.full((12, 8, 4), 7, np.float32)
    rows.willneed(np.array(indices, np.int64))
    assert rows.gather(np.array(indices, np.int64), out).tolist() == [8] * len(indices)
    assert np.array_equal(out[: len(indices)], data[indices])
    assert (out[len(indices) :] == 7).all()


@pytest.mark.parametrize(
    "out", [np.empty((2, 8, 4), np.float16), np.empty((2, 8, 5), np.float32), np.empty((1, 8, 4), np.float32)]
)
def test_a_buffer_that_does_not_fit_is_refused(folder: Path, out: Any) -> None:
    with pytest.raises(ValueError, match="buffer"):
        Rows.open(folder).gather([0, 1], out)


def test_maps_are_bounded_and_views_outlive_them(folder: Path, data: Any) -> None:
    def mapped() -> int:
        return sum(str(folder) in line for line in Path("/proc/self/maps").read_text().splitlines())

    rows = Rows.open(folder, max_open=1)
    assert mapped() == 0
    views = [rows[row] for row in range(10)]
    assert mapped() == 3
    assert all(np.array_equal(view, data[row]) for row, view in enumerate(views))
    del views
    assert mapped() == 1
    assert len([p for p in Path("/proc/self/fd").iterdir() if str(folder) in str(p.resolve())]) == 1


def test_threads_may_share_a_reader(folder: Path, data: Any) -> None:
    rows = Rows.open(folder, max_open=1)
    wrong: list[int] = []

    def read(seed: int) -> None:
        order = np.random.default_rng(seed).integers(0, 10, 300).tolist()
        wrong.extend(row for row in order if not np.array_equal(rows[row], data[row]))

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_ragged_rows_come_back_padded_with_zeros(
    tmp_path: Path, draw: Callable[..., Any], ragged_into: Callable[..., None], dtype: DType
) -> None:
    lengths = np.array([3, 200, 0, 128, 1, 130, 77, 0, 200], np.int32)
    data = [draw((int(n), 4), dtype, seed) for seed, n in enumerate(lengths)]
    ragged_into(tmp_path, RaggedLayout(lengths, 200, 4, dtype, 256), data)
    rows = RaggedRows.open(tmp_path)
    assert (rows.shape, rows.dtype) == ((9, 200, 4), dtype)
    assert all(np.array_equal(rows[i], data[i]) for i in range(9))
    out = np.full((9, 200, 4), 7, rows.storage)
    order = [8, 2, 0, 5, 7, 1, 6, 3, 4]
    rows.willneed(order)
    assert rows.gather(order, out).tolist() == lengths[order].tolist()
    for place, row in enumerate(order):
        assert np.array_equal(out[place, : lengths[row]], data[row])
        assert not out[place, lengths[row] :].any()
    assert [rows.proven(row).tobytes() for row in range(9)] == [part.tobytes() for part in data]


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda p: (p / "tokens/c/1/0").unlink(), "Shard 1 of"),
        (lambda p: half(p / "tokens/c/1/0"), "Shard 1 of"),
        (lambda p: (p / "lengths/c/0").unlink(), "lengths"),
        (lambda p: half(p / "lengths/c/0"), "."),
        (lambda p: (p / "starts/c/0").unlink(), "starts"),
        (lambda p: half(p / "starts/c/0"), "starts"),
        (lambda p: (p / "zarr.json").unlink(), "zarr.json"),
        (lambda p: edit(p / "zarr.json", "200", "100"), "ragged"),
        (lambda p: half(p / "tokens/zarr.json"), "zarr.json"),
    ],
)
def test_damaged_ragged_stores_are_refused(
    tmp_path: Path,
    draw: Callable[..., Any],
    ragged_into: Callable[..., None],
    harm: Callable[[Path], object],
    message: str,
) -> None:
    lengths = np.array([200, 100, 200, 7], np.int32)
    data = [draw((int(n), 4), "float16", seed) for seed, n in enumerate(lengths)]
    ragged_into(tmp_path, RaggedLayout(lengths, 200, 4, "float16", 256), data)
    harm(tmp_path)
    with pytest.raises(Damaged, match=message):
        RaggedRows.open(tmp_path)
