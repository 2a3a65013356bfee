"""Memory maps of shard files, the most recently used kept.

Maps are private and read-only: nothing done to them reaches the file, and they count against no commit
limit. Each holds a file descriptor, and page tables that cost about 2 MB per GiB touched: hence their bound.
"""

import mmap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np

from elf.cache.recent import Recent

if TYPE_CHECKING:
    from elf.cache.layout import Array

MAX_OPEN = 128
"""Shards of one store open at once: three views of two splits stay below 1024 descriptors, the usual limit."""
Place: TypeAlias = tuple[int, int, int]
"""Shard, first token in it, token after the last."""


class Locator(Protocol):
    """What is asked of a store to find a shard."""

    def __call__(self, shard: int) -> tuple[Path, int]:
        """Its file and the number of its tokens."""
        ...


class Shards(Protocol):
    """The shards of a store, however their bytes come."""

    def tokens(self, place: Place) -> "Array":
        """(tokens, width), read-only."""
        ...

    def willneed(self, places: Sequence[Place]) -> None:
        """Start reading these tokens from the disk, and nothing else; returns at once."""
        ...

    def copy(self, places: Sequence[Place], outs: Sequence["Array"]) -> None:
        """Copy the tokens of ``places[i]`` to ``outs[i]``, (tokens, width) and C-contiguous."""
        ...


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


class MappedShards:
    """Shards through memory maps, at most ``limit`` of them at a time."""

    def __init__(
        self, locate: Locator, *, width: int, dtype: np.dtype[np.generic], limit: int = MAX_OPEN
    ) -> None:
        def mapped(shard: int) -> ShardMap:
            path, tokens = locate(shard)
            return ShardMap(path, tokens=tokens, width=width, dtype=dtype)

        self._maps = Recent(mapped, limit)
        self._limit = limit

    def tokens(self, place: Place) -> "Array":
        shard, start, stop = place
        return self._maps[shard].tokens[start:stop]

    def willneed(self, places: Sequence[Place]) -> None:
        for shard, start, stop in places:
            self._maps[shard].willneed(start, stop)

    def copy(self, places: Sequence[Place], outs: Sequence["Array"]) -> None:
        # Asking the maps for every row would cost as much as copying a tenth of a small one. What is held here is what
        # was asked for last, so no map lives on for it.
        held: dict[int, Array] = {}
        for (shard, start, stop), out in zip(places, outs, strict=True):
            tokens = held.get(shard)
            if tokens is None:
                if len(held) == self._limit:
                    held.clear()
                tokens = held[shard] = self._maps[shard].tokens
            out[:] = tokens[start:stop]
