"""Rows that are not in memory: ours, plain maps, and what the disk can do at all."""

import mmap
import os
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from row_store import WIDTH, Case

from elf.cache.layout import Array
from elf.cache.prefetch import Ahead
from elf.cache.rows import Rows

IN_FLIGHT = 16
"""Rows that the disk is asked for at once."""


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


@dataclass(frozen=True, slots=True)
class Cold:
    """Seconds of plain maps over ours, and over the disk's own; bytes read per byte asked for: ours, theirs."""

    faster: float
    possible: float
    read: float
    plain_read: float


def cold(case: Case) -> Cold:
    """The same shuffled rows read from the disk in three ways."""
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

    def disk() -> None:
        order = np.concatenate(case.batches(8)).tolist()
        files = [os.open(path, os.O_RDONLY | os.O_DIRECT) for path in case.shards()]

        def work(first: int) -> None:
            with mmap.mmap(-1, case.layout.chunk_bytes) as page:
                for row in order[first::IN_FLIGHT]:
                    shard, inside = divmod(row, case.layout.shard_rows)
                    os.preadv(files[shard], [page], inside * case.layout.chunk_bytes)

        with ThreadPoolExecutor(IN_FLIGHT) as threads:
            list(threads.map(work, range(IN_FLIGHT)))
        for file in files:
            os.close(file)

    asked = case.layout.chunk_bytes * case.batch * len(case.batches(8))
    seconds: dict[str, list[float]] = {"ours": [], "plain": [], "disk": []}
    read: dict[str, list[float]] = {"ours": [], "plain": [], "disk": []}
    for _ in range(3):
        for name, call in (("ours", ours), ("plain", plain), ("disk", disk)):
            drop_pages(case)
            before, began = disk_bytes(), time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - began)
            read[name].append((disk_bytes() - before) / asked)
    middle = {name: statistics.median(each) for name, each in seconds.items()}
    return Cold(
        faster=middle["plain"] / middle["ours"],
        possible=middle["plain"] / middle["disk"],
        read=statistics.median(read["ours"]),
        plain_read=statistics.median(read["plain"]),
    )
