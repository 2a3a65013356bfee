"""The embedding store against memory, against plain maps and against what people use instead.

    .venv/bin/python benchmarks/cache.py [--gib 4] [--folder DIR]

Two stores of random float16 rows are written (1,024 × 512 and 128 × 512 numbers a row) and read back in shuffled
batches. ``memcpy`` copies as many bytes from memory to the same buffer. Cold means that the files' pages were dropped
from the page cache before; "read" is what the disk then delivered. Peers read the same shuffled rows. Shards are
written to a file system in memory, so that the disk, the same for both sides, does not hide what they cost.
"""

import argparse
import importlib
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from measuring import Bar, finish, medians, peak_growth

from elf.cache.layout import Array, ArrayLayout
from elf.cache.prefetch import Ahead
from elf.cache.rows import Rows
from elf.cache.shards import finalise, write_metadata, write_shard

WIDTH = 512
BATCH_BYTES = 32 * 2**20
SHARD_BYTES = 128 * 2**20
WHOLE_SHARD = 512 * 2**20
"""What the product's shards hold."""
ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Case:
    """A store of ``rows`` rows of one size, in a folder of its own."""

    folder: Path
    layout: ArrayLayout

    @classmethod
    def write(cls, folder: Path, length: int, size: int) -> "Case":
        row_bytes = length * WIDTH * 2
        layout = ArrayLayout(size // row_bytes, length, WIDTH, "float16", SHARD_BYTES // row_bytes)
        write_metadata(folder, layout)
        for shard in range(layout.shards):
            write_shard(folder, layout, shard, [random_rows(len(layout.rows_of(shard)), length, seed=shard)])
        finalise(folder, layout)
        return cls(folder, layout)

    @property
    def batch(self) -> int:
        return BATCH_BYTES // self.layout.chunk_bytes

    @property
    def row_kib(self) -> int:
        return self.layout.chunk_bytes // 1024

    def buffer(self) -> Array:
        return np.empty((self.batch, self.layout.length, WIDTH), np.float16)

    def batches(self, count: int, *, seed: int = 0) -> list[Array]:
        """Disjoint batches of shuffled rows."""
        order = np.random.default_rng(seed).permutation(self.layout.rows)
        count = min(count, len(order) // self.batch)
        return [order[number * self.batch : (number + 1) * self.batch] for number in range(count)]

    def shards(self) -> list[Path]:
        return [self.folder / self.layout.shard_name(shard) for shard in range(self.layout.shards)]


def random_rows(rows: int, length: int, *, seed: int) -> Array:
    """Finite float16 rows that do not compress."""
    bits = np.random.default_rng(seed).integers(0, 2**16, (rows, length, WIDTH), np.uint16)
    return (bits & np.uint16(0xBFFF)).view(np.float16)


def warm(case: Case) -> tuple[float, float]:
    """Shuffled gathers of proven rows, and the first reading that proves them, in parts of memcpy's speed."""
    rows, out = Rows.open(case.folder), case.buffer()
    batches = case.batches(16)
    memory = random_rows(case.batch * len(batches), case.layout.length, seed=1)

    def copied() -> None:
        for number in range(len(batches)):
            out[:] = memory[number * case.batch : (number + 1) * case.batch]

    def gathered() -> None:
        for batch in batches:
            rows.gather(batch, out)

    def proven() -> None:
        fresh = Rows.open(case.folder)
        for batch in batches:
            fresh.gather(batch, out)

    seconds = medians({"memcpy": copied, "gather": gathered, "proving": proven}, rounds=ROUNDS)
    return seconds["memcpy"] / seconds["gather"], seconds["memcpy"] / seconds["proving"]


def drop_pages(case: Case) -> None:
    """Let the kernel forget the files' pages; they are clean, for the writer synced them."""
    for path in case.shards():
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def disk_bytes() -> int:
    """What this process had the disk deliver so far."""
    for line in Path("/proc/self/io").read_text().splitlines():
        if line.startswith("read_bytes:"):
            return int(line.split()[1])
    raise RuntimeError("this kernel does not count what a process reads")


def cold(case: Case) -> tuple[float, float, float]:
    """Seconds of plain maps over ours for the same shuffled rows, and bytes read per byte asked for: ours, theirs."""
    out = case.buffer()

    def ours() -> None:
        rows = Rows.open(case.folder)
        buffers = [case.buffer() for _ in range(3)]

        def read(batch: Array, buffer: Array) -> None:
            rows.gather(batch, buffer)

        with Ahead(case.batches(8), read, announce=rows.willneed, buffers=buffers, name="read") as feed:
            for _ in feed:
                pass

    def plain() -> None:
        shape = (case.layout.shard_rows, case.layout.length, WIDTH)
        maps = [
            np.memmap(path, np.float16, "r", shape=(len(case.layout.rows_of(shard)), *shape[1:]))
            for shard, path in enumerate(case.shards())
        ]
        for batch in case.batches(8):
            for place, row in enumerate(batch.tolist()):
                shard, inside = divmod(row, case.layout.shard_rows)
                out[place] = maps[shard][inside]

    asked = case.layout.chunk_bytes * case.batch * len(case.batches(8))
    seconds: dict[str, list[float]] = {"ours": [], "plain": []}
    read: dict[str, list[float]] = {"ours": [], "plain": []}
    for _ in range(3):
        for name, call in (("ours", ours), ("plain", plain)):
            drop_pages(case)
            before, began = disk_bytes(), time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - began)
            read[name].append((disk_bytes() - before) / asked)
    middle = {name: statistics.median(each) for name, each in seconds.items()}
    return middle["plain"] / middle["ours"], statistics.median(read["ours"]), statistics.median(read["plain"])


def write(folder: Path) -> tuple[float, float]:
    """Seconds of zarr over ours for one shard, and our memory beyond the rows, in batches."""
    rows = WHOLE_SHARD // (1024 * WIDTH * 2)
    layout = ArrayLayout(rows, 1024, WIDTH, "float16", rows)
    block = random_rows(layout.rows, 1024, seed=0)
    batch = BATCH_BYTES // layout.chunk_bytes
    pieces = [block[start : start + batch] for start in range(0, layout.rows, batch)]

    def ours() -> None:
        shutil.rmtree(folder / "ours", ignore_errors=True)
        write_metadata(folder / "ours", layout)
        write_shard(folder / "ours", layout, 0, pieces)

    def zarrs() -> None:
        shutil.rmtree(folder / "zarr", ignore_errors=True)
        array = zarr.create_array(
            folder / "zarr",
            shape=block.shape,
            chunks=(1, 1024, WIDTH),
            shards=block.shape,
            dtype="float16",
            compressors=None,
            fill_value=float("nan"),
            config={"write_empty_chunks": True},
        )
        array[:] = block

    seconds = medians({"ours": ours, "zarr": zarrs}, rounds=ROUNDS)
    return seconds["zarr"] / seconds["ours"], peak_growth(ours) / BATCH_BYTES


def against_datasets(case: Case, folder: Path) -> float:
    """Seconds of HF datasets (a fixed-size list column on the disk, mapped, whole batches) over ours."""
    import pyarrow as pa
    from datasets import Dataset, disable_progress_bars, load_from_disk

    disable_progress_bars()
    stored, size = Rows.open(case.folder), case.layout.length * WIDTH

    def tables() -> Iterator[pa.RecordBatch]:
        for shard in range(case.layout.shards):
            rows = case.layout.rows_of(shard)
            flat = np.concatenate([stored[row].reshape(-1) for row in rows])
            yield pa.record_batch({"x": pa.FixedSizeListArray.from_arrays(pa.array(flat), size)})

    Dataset(pa.Table.from_batches(tables())).save_to_disk(str(folder / "datasets"))
    peer: Any = load_from_disk(str(folder / "datasets")).with_format("numpy", dtype=np.float16)
    batches, out = case.batches(8), case.buffer()
    first = peer[batches[0].tolist()]["x"].reshape(out.shape)
    stored.gather(batches[0], out)
    if not np.array_equal(first.view(np.uint16), out.view(np.uint16)):
        raise RuntimeError("HF datasets gives other rows than the store")

    def theirs() -> None:
        for batch in batches:
            out[:] = peer[batch.tolist()]["x"].reshape(out.shape)

    def ours() -> None:
        for batch in batches:
            stored.gather(batch, out)

    seconds = medians({"ours": ours, "datasets": theirs}, rounds=ROUNDS)
    return seconds["datasets"] / seconds["ours"]


def peers(case: Case, folder: Path) -> dict[str, float | None]:
    """Seconds of other loaders over ours, row by row as they give them; None where they are not installed."""
    stored = Rows.open(case.folder)
    rows = min(case.layout.rows, 2048)
    order = np.random.default_rng(0).permutation(rows)
    out = np.empty((case.layout.length, WIDTH), np.float16)

    def ours() -> None:
        for row in order.tolist():
            out[:] = stored[row]

    found: dict[str, float | None] = {}
    for name, opened in (("litdata", _litdata), ("streaming", _streaming)):
        try:
            importlib.import_module(name)
        except ImportError:
            found[name] = None
            continue
        read = opened(stored, rows, folder / name)

        def theirs(read: Callable[[int], Array] = read) -> None:
            for row in order.tolist():
                out[:] = read(row)

        seconds = medians({"ours": ours, name: theirs}, rounds=3)
        found[name] = seconds[name] / seconds["ours"]
    return found


def _litdata(stored: Rows, rows: int, folder: Path) -> Callable[[int], Array]:
    from litdata import StreamingDataset  # pyright: ignore[reportMissingImports]
    from litdata.streaming import Cache  # pyright: ignore[reportMissingImports]

    cache = Cache(str(folder), chunk_bytes="64MB")
    for row in range(rows):
        cache[row] = {"x": np.array(stored[row])}
    cache.done()
    cache.merge()
    peer = StreamingDataset(str(folder), shuffle=False)
    return lambda row: peer[row]["x"]


def _streaming(stored: Rows, rows: int, folder: Path) -> Callable[[int], Array]:
    from streaming import MDSWriter, StreamingDataset  # pyright: ignore[reportMissingImports]

    with MDSWriter(out=str(folder), columns={"x": "ndarray"}, size_limit="64mb") as writer:
        for row in range(rows):
            writer.write({"x": np.array(stored[row])})
    peer = StreamingDataset(local=str(folder), shuffle=False, batch_size=1)
    return lambda row: peer[row]["x"]


def overhead(case: Case) -> float:
    """Bytes of a finished store over those of its numbers."""
    size = sum(path.stat().st_size for path in case.folder.rglob("*") if path.is_file())
    return size / (case.layout.rows * case.layout.chunk_bytes)


def main() -> None:
    parser = argparse.ArgumentParser(
        description="The embedding store against memory, maps and other loaders."
    )
    parser.add_argument("--gib", type=float, default=4.0, help="size of each store")
    parser.add_argument("--folder", type=Path, help="where to write; a temporary folder when absent")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        folder, size = Path(name), int(given.gib * 2**30)
        long, short = (Case.write(folder / str(length), length, size) for length in (1024, 128))
        bars: list[Bar] = []
        for case, target in ((long, 0.9), (short, 0.8)):
            ready, proving = warm(case)
            bars.append(Bar(f"warm gather over memcpy, rows of {case.row_kib:,} KiB", ready, target))
            print(f"rows of {case.row_kib:,} KiB: the first reading, proven by CRC, {proving:.2f} of memcpy")
        for case in (long, short):
            faster, read, plain = cold(case)
            bars.append(Bar(f"cold, plain map / ours, {case.row_kib:,} KiB", faster, 8))
            bars.append(Bar(f"cold, bytes read / asked for, {case.row_kib:,} KiB", read, 1.1, at_most=True))
            print(f"rows of {case.row_kib:,} KiB, cold: a plain map reads {plain:.1f} bytes for one")
        bars.append(Bar("HF datasets / ours, 128 KiB", against_datasets(short, folder), 2.5))
        for peer, slower in peers(short, folder).items():
            print(f"{peer}: {'not installed' if slower is None else f'{slower:.1f} × our time, row by row'}")
        with tempfile.TemporaryDirectory(dir="/dev/shm") as memory_folder:
            slower, memory = write(Path(memory_folder))
        bars.append(Bar("write, zarr / ours", slower, 2))
        bars.append(Bar("write, memory beyond the rows in batches", memory, 1, at_most=True))
        bars.append(
            Bar("store bytes / numbers' bytes", max(map(overhead, (long, short))), 1.01, at_most=True)
        )
    finish(bars)


if __name__ == "__main__":
    main()
