"""Reading an embedding store: mapped rows without a copy, batches gathered into buffers that are used again.

`Rows` (fixed length) and `RaggedRows` read a finished store. Numbers come in the stored dtype, bfloat16 as uint16
bits; torch views them as it likes. `gather` and `fill` compare what they copied with its CRC-32C the first time this
process reads a row: that costs one pass over the copy while it is in the processor's cache, once a row, and after it
rows come at the speed of memory. What a disk changes later in a process's life goes unseen until `verify_artifact`.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from elf.cache.errors import AGAIN, Damaged
from elf.cache.files import crc32c
from elf.cache.layout import STORAGE, Array, DType, Layout
from elf.cache.maps import MAX_OPEN, MappedShards, Place, Shards
from elf.cache.opening import is_ragged, read_array_layout, read_ragged_layout
from elf.cache.parts import read_record, shard_fault
from elf.cache.preads import ReadShards

Reader: TypeAlias = Literal["map", "pread"]
"""Through memory maps, or by reads where an I/O error under a map must not kill the process."""
Indices: TypeAlias = "Sequence[int] | npt.NDArray[np.integer]"


class RowSource(Protocol):
    """Rows of (length, width) numbers by index."""

    @property
    def shape(self) -> tuple[int, int, int]: ...
    @property
    def dtype(self) -> DType: ...
    @property
    def storage(self) -> np.dtype[np.generic]: ...
    def willneed(self, indices: Indices) -> None: ...
    def gather(self, indices: Indices, out: Array) -> npt.NDArray[np.int32]: ...
    def fill(self, indices: Indices, outs: Sequence[Array]) -> None: ...


class _StoredRows:
    """What both kinds of store share; shape (rows, length, width)."""

    def __init__(
        self, folder: Path, layout: Layout, *, reader: Reader = "map", max_open: int = MAX_OPEN
    ) -> None:
        self.folder = folder
        self.layout = layout
        self.shape = (layout.rows, layout.length, layout.width)
        self.dtype: DType = layout.dtype
        self.storage = STORAGE[layout.dtype].dtype
        shards = MappedShards if reader == "map" else ReadShards
        locate = partial(_locate, folder, layout)
        self._shards: Shards = shards(locate, width=layout.width, dtype=self.storage, limit=max_open)
        self._unproven = np.ones(layout.rows, np.bool_)
        self._crc = np.zeros(layout.rows, np.uint32)
        self._crc_known = np.zeros(layout.shards, np.bool_)
        for shard in range(layout.shards):
            if fault := shard_fault(folder, layout, shard):
                raise Damaged(f"Shard {shard} of the store {folder} is damaged: {fault}. {AGAIN}")
        if (folder / layout.shard_name(layout.shards)).exists():
            raise Damaged(
                f"The store {folder} has more than the {layout.shards} shards it describes. {AGAIN}"
            )

    def __len__(self) -> int:
        return self.layout.rows

    def __getitem__(self, row: int) -> Array:
        """The stored tokens of a row, (tokens, width), read-only and not proven; mapped rows are not copied."""
        return self._shards.tokens(self._places([row])[0])

    def proven(self, row: int) -> Array:
        """`self[row]`, once its bytes are those that were recorded. Raises Damaged naming the row and its shard."""
        [place] = self._places([row])
        tokens = self._shards.tokens(place)
        self._check_row(row, place[0], tokens)
        return tokens

    def prove_shard(self, shard: int, tokens: Array) -> None:
        """Compare every row of a shard that was read by other means, ``tokens`` (stored, width). Raises Damaged."""
        rows = self.layout.rows_of(shard)
        for row, (_, start, stop) in zip(rows, self._places(rows), strict=True):
            self._check_row(row, shard, tokens[start:stop])

    def willneed(self, indices: Indices) -> None:
        """Start reading the rows' exact byte ranges from the disk; returns at once."""
        self._shards.willneed(list(_merged(sorted(self._places(indices)))))

    def fill(self, indices: Indices, outs: Sequence[Array]) -> None:
        """Copy each row's tokens to its own of ``outs``, (tokens, width) in the stored dtype and C-contiguous.

        Raises Damaged, naming row and shard, where bytes read for the first time are not those that were recorded.
        """
        self._fill(indices, self._places(indices), outs)

    def gather(self, indices: Indices, out: Array) -> npt.NDArray[np.int32]:
        """Copy rows to `out[:len(indices)]`, (n, length, width) in the stored dtype, zeros past a row's end.

        Returns the number of tokens of each row. Raises ValueError for another shape or dtype, Damaged as `fill`.
        """
        if out.dtype != self.storage or out.shape[1:] != self.shape[1:] or len(out) < len(indices):
            raise ValueError(
                f"the buffer is {out.dtype} {out.shape}, {len(indices)} rows of {self.folder} need "
                f"{self.storage} {(len(indices), *self.shape[1:])}."
            )
        places = self._places(indices)
        counts = np.array([stop - start for _, start, stop in places], np.int32)
        outs = list(out[: len(places)])
        for number in np.flatnonzero(counts < self.layout.length).tolist():
            count = int(counts[number])
            out[number, count:] = 0
            outs[number] = out[number, :count]
        self._fill(indices, places, outs)
        return counts

    def _fill(self, indices: Indices, places: Sequence[Place], outs: Sequence[Array]) -> None:
        self._shards.copy(places, outs)
        rows = np.asarray(indices, np.int64)
        for number in np.flatnonzero(self._unproven[rows]).tolist():
            row = int(rows[number])
            self._check_row(row, places[number][0], outs[number])
            self._unproven[row] = False

    def _check_row(self, row: int, shard: int, tokens: Array) -> None:
        if not self._crc_known[shard]:
            rows = self.layout.rows_of(shard)
            self._crc[rows.start : rows.stop] = read_record(self.folder, self.layout, shard).crc
            self._crc_known[shard] = True
        if crc32c(tokens) != int(self._crc[row]):
            raise Damaged(f"Row {row} in shard {shard} of the store {self.folder} has changed. {AGAIN}")

    def _places(self, indices: Indices) -> list[Place]:
        """(shard, first token, token after the last) of each row."""
        rows = np.asarray(indices, np.int64)
        outside = rows[(rows < 0) | (rows >= self.shape[0])]
        if outside.size:
            raise IndexError(
                f"there is no row {outside[0]} in {self.folder}; it has 0 to {self.shape[0] - 1}."
            )
        shards, starts, counts = self.layout.locate(rows)
        return list(zip(shards.tolist(), starts.tolist(), (starts + counts).tolist(), strict=True))


class Rows(_StoredRows):
    """A store of rows of one length."""

    @classmethod
    def open(cls, folder: Path, *, reader: Reader = "map", max_open: int = MAX_OPEN) -> "Rows":
        """Raises Damaged, naming document or shard, if anything is missing, cut or not of this format."""
        return cls(folder, read_array_layout(folder), reader=reader, max_open=max_open)


class RaggedRows(_StoredRows):
    """A store of rows of their own lengths, which `gather` pads with zeros."""

    @classmethod
    def open(cls, folder: Path, *, reader: Reader = "map", max_open: int = MAX_OPEN) -> "RaggedRows":
        """Raises Damaged, naming document or shard, if anything is missing, cut or not of this format."""
        return cls(folder, read_ragged_layout(folder), reader=reader, max_open=max_open)


def open_rows(folder: Path) -> Rows | RaggedRows:
    """A store of either kind. Raises Damaged as their own ``open`` does."""
    return (RaggedRows if is_ragged(folder) else Rows).open(folder)


def random_rows(rows: int, count: int, *, seed: int) -> npt.NDArray[np.int64]:
    """At most `count` different ones of so many rows, in order."""
    return np.sort(np.random.default_rng(seed).choice(rows, min(count, rows), replace=False))


def _locate(folder: Path, layout: Layout, shard: int) -> tuple[Path, int]:
    return folder / layout.shard_name(shard), int(layout.tokens_of(shard).sum())


def _merged(places: list[Place]) -> Iterator[Place]:
    """Sorted (shard, start, stop) with neighbours joined."""
    current: Place | None = None
    for shard, start, stop in places:
        if current is not None and current[0] == shard and start <= current[2]:
            current = (shard, current[1], max(current[2], stop))
            continue
        if current is not None:
            yield current
        current = (shard, start, stop)
    if current is not None:
        yield current
