"""Memory maps of shard files, the most recently used kept.

Maps are private and read-only: nothing done to them reaches the file, and they count against no commit
limit. Page tables cost about 1 MB per GiB touched, which is why their number is bounded.
"""

import mmap
import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from elf.cache.layout import Array

MAX_MAPS = 512


class ShardMap:
    """One mapped file and its numbers as (tokens, width); unmapped when the last view of it is gone."""

    __slots__ = ("_map", "_token_bytes", "tokens")

    def __init__(self, path: Path, *, tokens: int, width: int, dtype: np.dtype[np.generic]) -> None:
        with path.open("rb", buffering=0) as file:
            self._map = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
        self._token_bytes = width * dtype.itemsize
        self.tokens: Array = np.frombuffer(self._map, dtype, count=tokens * width).reshape(tokens, width)

    def willneed(self, start: int, stop: int) -> None:
        """Let the kernel read these tokens ahead, and nothing else; returns at once."""
        first = start * self._token_bytes // mmap.PAGESIZE * mmap.PAGESIZE
        self._map.madvise(mmap.MADV_WILLNEED, first, stop * self._token_bytes - first)


class ShardMaps:
    """Maps by shard number, opened on demand, at most `limit` of them; safe to share between threads."""

    def __init__(self, mapped: Callable[[int], ShardMap], limit: int) -> None:
        self._open = mapped
        self._limit = limit
        self._maps: OrderedDict[int, ShardMap] = OrderedDict()
        self._lock = threading.Lock()

    def __getitem__(self, shard: int) -> ShardMap:
        with self._lock:
            found = self._maps.get(shard)
            if found is None:
                found = self._maps[shard] = self._open(shard)
                if len(self._maps) > self._limit:
                    self._maps.popitem(last=False)
            else:
                self._maps.move_to_end(shard)
            return found
