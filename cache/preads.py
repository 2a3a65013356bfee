"""Shard files read by ``pread(2)`` in several threads, the most recently used kept open.

For network file systems: there an I/O error under a memory map kills the process (SIGBUS), a failed read is an
error like any other, and many reads in flight hide what each one waits.
"""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from elf.cache.errors import AGAIN, CacheError, Damaged
from elf.cache.maps import MAX_OPEN, Locator, Place
from elf.cache.recent import Recent

if TYPE_CHECKING:
    from elf.cache.layout import Array

THREADS = 16


class ShardFile:
    """One open file, closed when its last user is gone."""

    __slots__ = ("_descriptor", "path")

    def __init__(self, path: Path) -> None:
        self._descriptor = -1
        self.path = path
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)

    def willneed(self, start: int, count: int) -> None:
        """Let the kernel read these bytes ahead; returns at once."""
        os.posix_fadvise(self._descriptor, start, count, os.POSIX_FADV_WILLNEED)

    def read(self, start: int, out: memoryview) -> None:
        """Fill ``out`` (bytes) from byte ``start`` on. Raises CacheError if the disk refuses, Damaged at the end of
        the file."""
        done = 0
        while done < len(out):
            try:
                count = os.preadv(self._descriptor, [out[done:]], start + done)
            except OSError as error:
                raise CacheError(
                    f"{self.path} cannot be read at byte {start + done:,}: {error.strerror}. Look at the disk or the "
                    "network it comes over; the same command goes on from what is saved."
                ) from error
            if count == 0:
                raise Damaged(f"{self.path} ends at byte {start + done:,}, in the middle of a row. {AGAIN}")
            done += count


class ReadShards:
    """Shards through reads, at most ``limit`` files open at a time."""

    def __init__(
        self, locate: Locator, *, width: int, dtype: np.dtype[np.generic], limit: int = MAX_OPEN
    ) -> None:
        self._files = Recent(lambda shard: ShardFile(locate(shard)[0]), limit)
        self._width, self._dtype = width, dtype
        self._token_bytes = width * dtype.itemsize
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="pread")

    def tokens(self, place: Place) -> "Array":
        _, start, stop = place
        out: Array = np.empty((stop - start, self._width), self._dtype)
        self._read(place, out)
        out.flags.writeable = False
        return out

    def willneed(self, places: Sequence[Place]) -> None:
        for shard, start, stop in places:
            self._files[shard].willneed(start * self._token_bytes, (stop - start) * self._token_bytes)

    def copy(self, places: Sequence[Place], outs: Sequence["Array"]) -> None:
        for _ in self._pool.map(self._read, places, outs):
            pass

    def _read(self, place: Place, out: "Array") -> None:
        shard, start, stop = place
        if start < stop:
            self._files[shard].read(start * self._token_bytes, out.reshape(-1).view(np.uint8).data)
