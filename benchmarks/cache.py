"""The embedding store against memory, against plain maps and against what people use instead.

    .venv/bin/python benchmarks/cache.py [--gib 4] [--folder DIR]

Two stores of random float16 rows are written (1,024 × 512 and 128 × 512 numbers a row) and read back in shuffled
batches. ``memcpy`` copies as many bytes from memory to the same buffer. Cold means that the files' pages were dropped
from the page cache before; "read" is what the disk then delivered; "the disk alone" reads the rows around the page
cache, many at once, and does nothing with them. Peers read the same shuffled rows. Shards are written to a file system
in memory, so that the disk, the same for both sides, does not hide what they cost.
"""

import argparse
import shutil
import tempfile
from pathlib import Path

import numpy as np
import zarr
from cold import IN_FLIGHT, cold
from measuring import Bar, finish, medians, peak_growth
from peers import against_datasets, peers
from row_store import BATCH_BYTES, WIDTH, Case, random_rows

from elf.cache.layout import ArrayLayout
from elf.cache.rows import Rows
from elf.cache.shards import write_metadata, write_shard

WHOLE_SHARD = 512 * 2**20
"""What the product's shards hold."""
ROUNDS = 5


def warm(case: Case) -> tuple[float, float, float]:
    """Shuffled gathers of proven rows, the first reading that proves them, and a bare loop that copies the same rows
    out of maps of the same files, in parts of memcpy's speed."""
    rows, out = Rows.open(case.folder), case.buffer()
    batches = case.batches(16)
    memory = random_rows(case.batch * len(batches), case.layout.length, seed=1)
    maps = [np.asarray(np.memmap(path, np.float16, "r")) for path in case.shards()]
    size, lines = case.layout.length * WIDTH, out.reshape(len(out), -1)

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

    places = [[divmod(row, case.layout.shard_rows) for row in batch.tolist()] for batch in batches]

    def bare() -> None:
        for batch in places:
            for line, (shard, row) in zip(lines, batch, strict=False):
                line[:] = maps[shard][row * size : (row + 1) * size]

    sides = {"memcpy": copied, "gather": gathered, "proving": proven, "bare": bare}
    seconds = medians(sides, rounds=ROUNDS)
    memcpy = seconds["memcpy"]
    return memcpy / seconds["gather"], memcpy / seconds["proving"], memcpy / seconds["bare"]


def write(folder: Path) -> tuple[float, float, float]:
    """Seconds of zarr over ours for one shard, the same over those of a bare write of its bytes, and our memory beyond
    the rows, in batches."""
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

    def bare() -> None:
        (folder / "bare").unlink(missing_ok=True)
        with (folder / "bare").open("wb", buffering=0) as file:
            for piece in pieces:
                file.write(piece.data)

    seconds = medians({"ours": ours, "zarr": zarrs, "bare": bare}, rounds=ROUNDS)
    memory = peak_growth(ours) / BATCH_BYTES
    return seconds["zarr"] / seconds["ours"], seconds["zarr"] / seconds["bare"], memory


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
            ready, proving, bare = warm(case)
            bars.append(Bar(f"warm gather over memcpy, rows of {case.row_kib:,} KiB", ready, target))
            print(f"rows of {case.row_kib:,} KiB: the first reading, proven by CRC, {proving:.2f} of memcpy;")
            print(f"    a bare loop of copies out of maps of these files, {bare:.2f}")
        for case in (long, short):
            found = cold(case)
            bars.append(Bar(f"cold, plain map / ours, {case.row_kib:,} KiB", found.faster, 8))
            bars.append(
                Bar(f"cold, bytes read / asked for, {case.row_kib:,} KiB", found.read, 1.1, at_most=True)
            )
            print(
                f"rows of {case.row_kib:,} KiB, cold: a plain map reads {found.plain_read:.1f} bytes for one,"
            )
            print(f"    and the disk alone, {IN_FLIGHT} rows at once, is {found.possible:.1f} times as fast")
        bars.append(Bar("HF datasets / ours, 128 KiB", against_datasets(short, folder), 2.5))
        for peer, slower in peers(short, folder).items():
            print(f"{peer}: {'not installed' if slower is None else f'{slower:.1f} × our time, row by row'}")
        with tempfile.TemporaryDirectory(dir="/dev/shm") as memory_folder:
            slower, at_most, memory = write(Path(memory_folder))
        print(f"write: zarr takes {at_most:.2f} times as long as a bare write of the bytes")
        bars.append(Bar("write, zarr / ours", slower, 2))
        bars.append(Bar("write, memory beyond the rows in batches", memory, 1, at_most=True))
        bars.append(
            Bar("store bytes / numbers' bytes", max(map(overhead, (long, short))), 1.01, at_most=True)
        )
    finish(bars)


if __name__ == "__main__":
    main()
