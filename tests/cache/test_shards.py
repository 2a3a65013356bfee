"""What is written is what zarr would write, once and for good, whoever writes it and however often he dies."""

import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorstore
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from elf.cache.errors import CacheError, Damaged, NotFinite, Unwritable
from elf.cache.layout import STORAGE, ArrayLayout, DType, RaggedLayout
from elf.cache.rows import Rows
from elf.cache.shards import finalise, finished_parts, write_metadata, write_shard

DTYPES: tuple[DType, ...] = ("float16", "bfloat16", "float32")
LAYOUT = ArrayLayout(rows=10, length=8, width=4, dtype="float16", shard_rows=4)


def tree(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def by_zarr(folder: Path, data: Any, dtype: DType, chunk: tuple[int, ...], shard: tuple[int, ...]) -> Any:
    fill = STORAGE[dtype].fill
    array = zarr.create_array(
        folder,
        shape=data.shape,
        dtype=data.dtype,
        chunks=chunk,
        shards=shard,
        compressors=None,
        fill_value=float("nan") if fill == "NaN" else fill,
        attributes=dict(STORAGE[dtype].attributes),
        config={"write_empty_chunks": len(chunk) == 3},
    )
    array[:] = data
    return array


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [10, 8, 1])
def test_a_store_is_byte_for_byte_what_zarr_writes(
    tmp_path: Path, draw: Callable[..., Any], rows_into: Callable[..., None], dtype: DType, rows: int
) -> None:
    layout = ArrayLayout(rows, 8, 4, dtype, 4)
    data = draw((rows, 8, 4), dtype)
    data[0] = 0
    rows_into(tmp_path / "ours", layout, data)
    by_zarr(tmp_path / "zarr", data, dtype, (1, 8, 4), (4, 8, 4))
    ours, theirs = tree(tmp_path / "ours"), tree(tmp_path / "zarr")
    assert {name: ours[name] for name in theirs} == theirs
    assert {name.split("/")[0] for name in ours.keys() - theirs.keys()} == {"parts", "crc"}


@pytest.mark.parametrize("dtype", DTYPES)
def test_zarr_and_tensorstore_read_it(
    tmp_path: Path, draw: Callable[..., Any], rows_into: Callable[..., None], dtype: DType
) -> None:
    data = draw((10, 8, 4), dtype)
    rows_into(tmp_path, ArrayLayout(10, 8, 4, dtype, 4), data)
    assert np.array_equal(zarr.open_array(tmp_path, mode="r")[:], data)
    store = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(tmp_path)}}
    assert np.array_equal(tensorstore.open(store, open=True).result().read().result(), data)


@pytest.mark.parametrize("dtype", DTYPES)
def test_ragged_rows_are_what_zarr_writes_and_reads(
    tmp_path: Path, draw: Callable[..., Any], ragged_into: Callable[..., None], dtype: DType
) -> None:
    lengths = np.random.default_rng(1).integers(0, 200, 12).astype(np.int32)
    rows = [draw((int(n), 4), dtype, seed) for seed, n in enumerate(lengths)]
    layout = RaggedLayout(lengths, 200, 4, dtype, 512)
    ragged_into(tmp_path / "ours", layout, rows)
    group = zarr.open_group(tmp_path / "ours", mode="r")
    tokens, starts, found = (np.asarray(group[name][:]) for name in ("tokens", "starts", "lengths"))  # pyright: ignore[reportIndexIssue, reportArgumentType]
    assert np.array_equal(found, lengths)
    for row, start, length in zip(rows, starts, lengths, strict=True):
        assert np.array_equal(tokens[start : start + length], row)
    by_zarr(tmp_path / "zarr", tokens, dtype, (128, 4), (512, 4))
    ours, theirs = tree(tmp_path / "ours" / "tokens"), tree(tmp_path / "zarr")
    assert ours == theirs
    store = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(tmp_path / "ours" / "tokens")}}
    read = tensorstore.open(store, open=True).result().read().result()
    assert read.tobytes() == tokens.tobytes()


@settings(max_examples=20, deadline=None)
@given(
    rows=st.integers(1, 20),
    length=st.integers(1, 9),
    width=st.integers(1, 9),
    shard_rows=st.integers(1, 8),
    dtype=st.sampled_from(DTYPES),
    block=st.integers(1, 9),
)
def test_any_store_comes_back(
    tmp_path_factory: pytest.TempPathFactory,
    draw: Callable[..., Any],
    rows_into: Callable[..., None],
    rows: int,
    length: int,
    width: int,
    shard_rows: int,
    dtype: DType,
    block: int,
) -> None:
    folder = tmp_path_factory.mktemp("store")
    data = draw((rows, length, width), dtype, seed=rows)
    rows_into(folder, ArrayLayout(rows, length, width, dtype, shard_rows), data, block=block)
    store = Rows.open(folder)
    out = np.empty_like(data)
    store.gather(range(rows), out)
    assert out.tobytes() == data.tobytes()
    assert np.asarray(zarr.open_array(folder, mode="r")[:]).tobytes() == data.tobytes()
    assert all(store.proven(row).tobytes() == data[row].tobytes() for row in range(rows))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_number_that_is_not_finite_never_enters(
    tmp_path: Path, draw: Callable[..., Any], dtype: DType, bad: float
) -> None:
    layout = ArrayLayout(10, 8, 4, dtype, 4)
    data = draw((10, 8, 4), dtype)
    poison = np.float32(bad)
    data[6, 2, 3] = poison.view(np.uint32) >> 16 if dtype == "bfloat16" else poison
    write_metadata(tmp_path, layout)
    write_shard(tmp_path, layout, 0, [data[0:4]])
    with pytest.raises(NotFinite, match="Row 6, token 2, channel 3") as caught:
        write_shard(tmp_path, layout, 1, [data[4:6], data[6:8]])
    assert caught.value.row == 6
    assert sorted(name for name in tree(tmp_path) if not name.startswith(("c/0", "crc/0"))) == [
        "parts/0.json",
        "zarr.json",
    ]


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_largest_and_smallest_numbers_do_enter(
    tmp_path: Path, rows_into: Callable[..., None], dtype: DType
) -> None:
    bits = STORAGE[dtype].exponent - 1  # the largest exponent but one with every mantissa bit below it
    data = np.zeros((2, 8, 4), STORAGE[dtype].bits)
    data[0], data[1, 0] = bits, 1
    rows_into(tmp_path, ArrayLayout(2, 8, 4, dtype, 4), data.view(STORAGE[dtype].dtype))
    assert Rows.open(tmp_path)[0].tobytes() == data[0].tobytes()


FAULTS: dict[str, tuple[Callable[[Any], list[Any]], str]] = {
    "too few rows": (lambda x: [x[:3]], "got 3 rows instead of 4"),
    "too many rows": (lambda x: [x[:5]], "block"),
    "another dtype": (lambda x: [x[:4].astype(np.float32)], "float32"),
    "another width": (lambda x: [x[:4, :, :3]], r"\(4, 8, 3\)"),
    "another length": (lambda x: [x[:4, :7]], r"\(4, 7, 4\)"),
    "half a row": (lambda x: [x[0, :4], x[0, 4:]], "does not end where row"),
    "bare numbers": (lambda x: [x[:4].reshape(-1)], "block"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_blocks_that_are_not_the_shard_are_refused(
    tmp_path: Path, draw: Callable[..., Any], name: str
) -> None:
    blocks, message = FAULTS[name]
    with pytest.raises(CacheError, match=f"Shard 0.*{message}"):
        write_shard(tmp_path, LAYOUT, 0, blocks(draw((10, 8, 4), "float16")))
    assert tree(tmp_path) == {}


def test_what_goes_wrong_in_the_encoder_is_told_as_it_is(tmp_path: Path, draw: Callable[..., Any]) -> None:
    def blocks() -> Iterator[Any]:
        yield draw((2, 8, 4), "float16")
        raise PermissionError(13, "no access to the model")

    with pytest.raises(PermissionError, match="model"):
        write_shard(tmp_path, LAYOUT, 0, blocks())
    assert tree(tmp_path) == {}


def test_blocks_come_as_memory_too_and_need_not_be_contiguous(
    tmp_path: Path, draw: Callable[..., Any]
) -> None:
    data = draw((8, 8, 4), "float16")
    record = write_shard(tmp_path / "a", LAYOUT, 0, [data[::2]])
    same = write_shard(tmp_path / "b", LAYOUT, 0, [memoryview(data[::2].tobytes())])
    assert (record.digest, record.crc.tolist()) == (same.digest, same.crc.tolist())
    bits = draw((4, 8, 4), "bfloat16")
    layout = ArrayLayout(10, 8, 4, "bfloat16", 4)
    assert (
        write_shard(tmp_path / "c", layout, 0, [bits.view(np.int16)]).digest
        == write_shard(tmp_path / "d", layout, 0, [bits]).digest
    )


def test_writing_again_is_fine_if_equal_and_an_error_if_not(tmp_path: Path, draw: Callable[..., Any]) -> None:
    data = draw((4, 8, 4), "float16")
    write_shard(tmp_path, LAYOUT, 0, [data])
    before = tree(tmp_path)
    write_shard(tmp_path, LAYOUT, 0, [data])
    with pytest.raises(CacheError, match="encoder is not deterministic"):
        write_shard(tmp_path, LAYOUT, 0, [data + np.float16(1)])
    assert tree(tmp_path) == before
    assert (tmp_path / "c/0/0/0").stat().st_mode & 0o777 == 0o444


def replace(path: Path, raw: bytes) -> None:
    path.unlink()
    path.write_bytes(raw)


def flip(path: Path, place: int = 100) -> None:
    raw = bytearray(path.read_bytes())
    raw[place] ^= 4
    replace(path, bytes(raw))


HARM: dict[str, Callable[[Path], object]] = {
    "shard cut": lambda p: replace(p / "c/1/0/0", (p / "c/1/0/0").read_bytes()[:100]),
    "shard empty": lambda p: replace(p / "c/1/0/0", b""),
    "shard gone": lambda p: (p / "c/1/0/0").unlink(),
    "index changed": lambda p: flip(p / "c/1/0/0", -10),
    "record gone": lambda p: (p / "parts/1.json").unlink(),
    "record cut": lambda p: replace(p / "parts/1.json", b'{"rows": 4, "byt'),
    "record of other rows": lambda p: replace(p / "parts/1.json", (p / "parts/2.json").read_bytes()),
    "crc gone": lambda p: (p / "crc/1.npy").unlink(),
    "crc cut": lambda p: replace(p / "crc/1.npy", (p / "crc/1.npy").read_bytes()[:-3]),
}


@pytest.mark.parametrize("name", HARM)
def test_a_damaged_part_is_not_finished_and_is_written_again(
    tmp_path: Path, draw: Callable[..., Any], rows_into: Callable[..., None], name: str
) -> None:
    data = draw((10, 8, 4), "float16")
    rows_into(tmp_path, LAYOUT, data)
    whole = tree(tmp_path)
    HARM[name](tmp_path)
    assert set(finished_parts(tmp_path, LAYOUT)) == {0, 2}
    with pytest.raises(CacheError, match=r"lacks 1 of 3 shards, the first is shard 1;"):
        finalise(tmp_path, LAYOUT)
    write_shard(tmp_path, LAYOUT, 1, [data[4:8]])
    assert set(finalise(tmp_path, LAYOUT)) == {0, 1, 2}
    assert tree(tmp_path) == whole


def test_a_flipped_bit_before_the_end_is_found_and_the_shard_written_again(
    tmp_path: Path, draw: Callable[..., Any], rows_into: Callable[..., None]
) -> None:
    data = draw((10, 8, 4), "float16")
    rows_into(tmp_path, LAYOUT, data)
    whole = tree(tmp_path)
    flip(tmp_path / "c/1/0/0")
    with pytest.raises(Damaged, match=r"Shard 1 .* changed"):
        finalise(tmp_path, LAYOUT)
    assert set(finished_parts(tmp_path, LAYOUT)) == {0, 2}
    write_shard(tmp_path, LAYOUT, 1, [data[4:8]])
    finalise(tmp_path, LAYOUT)
    flip(tmp_path / "c/1/0/0")
    write_shard(tmp_path, LAYOUT, 1, [data[4:8]])
    assert tree(tmp_path) == whole


def test_a_folder_of_another_layout_is_refused(tmp_path: Path) -> None:
    write_metadata(tmp_path, LAYOUT)
    write_metadata(tmp_path, LAYOUT)
    with pytest.raises(Damaged, match=r"zarr\.json"):
        write_metadata(tmp_path, ArrayLayout(10, 8, 4, "float16", 5))


WORKER = """
import random, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from conftest import numbers
from elf.cache.layout import ArrayLayout
from elf.cache.shards import finished_parts, write_metadata, write_shard
folder, seed = Path(sys.argv[2]), int(sys.argv[3])
layout = ArrayLayout(62, 8, 16, "float16", 4)
data = numbers((62, 8, 16), "float16")

def encode(shard):
    for row in layout.rows_of(shard):
        print(row, flush=True)
        yield data[row : row + 1]

write_metadata(folder, layout)
done = finished_parts(folder, layout)
todo = [shard for shard in range(layout.shards) if shard not in done]
random.Random(seed).shuffle(todo)
for shard in todo:
    write_shard(folder, layout, shard, encode(shard))
"""
WORKED = ArrayLayout(62, 8, 16, "float16", 4)


def worker(folder: Path, seed: int) -> subprocess.Popen[str]:
    arguments = [sys.executable, "-c", WORKER, str(Path(__file__).parent), str(folder), str(seed)]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)


@pytest.fixture
def undisturbed(tmp_path: Path, draw: Callable[..., Any], rows_into: Callable[..., None]) -> dict[str, bytes]:
    rows_into(tmp_path / "undisturbed", WORKED, draw((62, 8, 16), "float16"))
    return tree(tmp_path / "undisturbed")


def test_workers_that_race_for_the_same_shards_leave_one_store(
    tmp_path: Path, undisturbed: dict[str, bytes]
) -> None:
    workers = [worker(tmp_path / "raced", seed) for seed in range(4)]
    for process in workers:
        process.communicate(timeout=60)
    assert [process.returncode for process in workers] == [0] * 4
    finalise(tmp_path / "raced", WORKED)
    assert tree(tmp_path / "raced") == undisturbed


@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_a_writer_killed_at_any_moment_is_continued_to_the_same_bytes(
    tmp_path: Path, undisturbed: dict[str, bytes], kills: int
) -> None:
    folder = tmp_path / "killed"
    moments = random.Random(3)
    for seed in range(kills):
        with worker(folder, seed) as process:
            assert process.stdout is not None
            for _ in range(
                moments.randint(1, 48 // kills)
            ):  # rows begun; all kills together stop short of the end
                process.stdout.readline()
            time.sleep(moments.uniform(0, 0.003))
            process.kill()
        finished = finished_parts(folder, WORKED)
        assert len(finished) < WORKED.shards
        for name in map(WORKED.shard_name, finished):
            assert (folder / name).read_bytes() == undisturbed[name]
    with worker(folder, 9) as process:
        process.communicate(timeout=60)
    finalise(folder, WORKED)
    found = {name: raw for name, raw in tree(folder).items() if ".tmp-" not in name}
    assert found == undisturbed


def test_a_file_that_may_not_grow_leaves_no_shard(tmp_path: Path, draw: Callable[..., Any]) -> None:
    layout = ArrayLayout(10, 64, 64, "float16", 10)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    try:
        with pytest.raises(Unwritable, match="bytes free"):
            write_shard(tmp_path, layout, 0, [draw((10, 64, 64), "float16")])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert tree(tmp_path) == {}


def test_a_full_disk_leaves_no_shard_and_room_lets_it_go_on(
    small_disk: Path, draw: Callable[..., Any]
) -> None:
    layout = ArrayLayout(12, 64, 1024, "float16", 4)
    data = draw((12, 64, 1024), "float16")
    folder = small_disk / "store"
    write_metadata(folder, layout)
    write_shard(folder, layout, 0, [data[:4]])
    with pytest.raises(Unwritable, match=r"disk is full \([\d,]+ bytes free"):
        write_shard(folder, layout, 1, [data[4:8]])
    assert set(finished_parts(folder, layout)) == {0}
    assert not [name for name in tree(folder) if name.startswith("c/1") or ".tmp" in name]
    subprocess.run(["mount", "-o", "remount,size=4m", str(small_disk)], check=True)
    for shard in (1, 2):
        write_shard(folder, layout, shard, [data[4 * shard : 4 * shard + 4]])
    finalise(folder, layout)
    whole = np.empty_like(data)
    Rows.open(folder).gather(range(12), whole)
    assert np.array_equal(whole, data)
