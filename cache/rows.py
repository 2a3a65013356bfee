"""Reading an embedding store: mapped rows without a copy, batches gathered into buffers that are used again.

A `RowSource` is what training sees, wherever the rows come from: `Rows` (fixed length) and `RaggedRows` map a
finished store. Numbers come in the stored dtype, bfloat16 as uint16 bits; torch views them as it likes.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from elf.cache.errors import Damaged
from elf.cache.files import crc32c, digest_file
from elf.cache.layout import STORAGE, Array, DType, Layout
from elf.cache.maps import MAX_MAPS, ShardMap, ShardMaps
from elf.cache.opening import read_array_layout, read_ragged_layout
from elf.cache.parts import read_record, shard_fault

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


class _StoredRows:
    """What both kinds of store share; shape (rows, length, width)."""

    def __init__(self, folder: Path, layout: Layout, *, max_maps: int = MAX_MAPS) -> None:
        self.folder = folder
        self.layout = layout
        self.shape = (layout.rows, layout.length, layout.width)
        self.dtype: DType = layout.dtype
        self.storage = STORAGE[layout.dtype].dtype
        self._maps = ShardMaps(self._map, max_maps)
        self._crcs: dict[int, npt.NDArray[np.uint32]] = {}
        for shard in range(layout.shards):
            if fault := shard_fault(folder, layout, shard):
                raise Damaged(f"Shard {shard} of the store {folder} is damaged: {fault}. {_CURE}")
        if (folder / layout.shard_name(layout.shards)).exists():
            raise Damaged(
                f"The store {folder} has more than the {layout.shards} shards it describes. {_CURE}"
            )

    def __len__(self) -> int:
        return self.layout.rows

    def __getitem__(self, row: int) -> Array:
        """The stored tokens of a row, (tokens, width), mapped and read-only: no copy."""
        [(shard, start, stop)] = self._places([row])
        return self._maps[shard].tokens[start:stop]

    def proven(self, row: int) -> Array:
        """`self[row]`, once its bytes are those that were recorded. Raises Damaged naming the row and its shard."""
        [(shard, start, stop)] = self._places([row])
        tokens = self._maps[shard].tokens[start:stop]
        if shard not in self._crcs:
            self._crcs[shard] = read_record(self.folder, self.layout, shard).crc
        self._check_row(shard, row, tokens, int(self._crcs[shard][row - self.layout.rows_of(shard).start]))
        return tokens

    def willneed(self, indices: Indices) -> None:
        """Start reading the rows' exact byte ranges from the disk; returns at once."""
        for shard, start, stop in _merged(sorted(self._places(indices))):
            self._maps[shard].willneed(start, stop)

    def gather(self, indices: Indices, out: Array) -> npt.NDArray[np.int32]:
        """Copy rows to `out[:len(indices)]`, (n, length, width) in the stored dtype, zeros past a row's end.

        Returns the number of tokens of each row. Raises ValueError for another shape or dtype.
        """
        if out.dtype != self.storage or out.shape[1:] != self.shape[1:] or len(out) < len(indices):
            raise ValueError(
                f"the buffer is {out.dtype} {out.shape}, {len(indices)} rows of {self.folder} need "
                f"{self.storage} {(len(indices), *self.shape[1:])}."
            )
        places = self._places(indices)
        tokens = {shard: self._maps[shard].tokens for shard in {place[0] for place in places}}
        length = self.layout.length
        for target, (shard, start, stop) in zip(out, places, strict=False):
            if stop - start == length:
                target[:] = tokens[shard][start:stop]
            else:
                target[: stop - start] = tokens[shard][start:stop]
                target[stop - start :] = 0
        return np.array([stop - start for _, start, stop in places], np.int32)

    def verify(self, *, sample: int | None = None, seed: int = 0) -> int:
        """Compare with what was recorded: every byte, or the CRC-32C of `sample` random rows.

        Returns the number of rows compared. Raises Damaged naming the shard, and the row where it is known.
        """
        if sample is None:
            for shard in range(self.layout.shards):
                self._verify_shard(shard)
            return len(self)
        rows = np.random.default_rng(seed).choice(len(self), min(sample, len(self)), replace=False)
        for row in sorted(rows.tolist()):
            self.proven(row)
        return len(rows)

    def _verify_shard(self, shard: int) -> None:
        record = read_record(self.folder, self.layout, shard)
        if digest_file(self.folder / self.layout.shard_name(shard)) == record.digest:
            return
        for row, crc in zip(self.layout.rows_of(shard), record.crc.tolist(), strict=True):
            self._check_row(shard, row, self[row], crc)
        raise Damaged(f"Shard {shard} of the store {self.folder} is not the file that was recorded. {_CURE}")

    def _check_row(self, shard: int, row: int, tokens: Array, crc: int) -> None:
        if crc32c(tokens) != crc:
            raise Damaged(f"Row {row} in shard {shard} of the store {self.folder} has changed. {_CURE}")

    def _places(self, indices: Indices) -> list[tuple[int, int, int]]:
        """(shard, first token, token after the last) of each row."""
        rows = np.asarray(indices, np.int64)
        outside = rows[(rows < 0) | (rows >= self.shape[0])]
        if outside.size:
            raise IndexError(
                f"there is no row {outside[0]} in {self.folder}; it has 0 to {self.shape[0] - 1}."
            )
        shards, starts, counts = self.layout.locate(rows)
        return list(zip(shards.tolist(), starts.tolist(), (starts + counts).tolist(), strict=True))

    def _map(self, shard: int) -> ShardMap:
        tokens = int(self.layout.tokens_of(shard).sum())
        path = self.folder / self.layout.shard_name(shard)
        return ShardMap(path, tokens=tokens, width=self.layout.width, dtype=self.storage)


class Rows(_StoredRows):
    """A store of rows of one length."""

    @classmethod
    def open(cls, folder: Path, *, max_maps: int = MAX_MAPS) -> "Rows":
        """Raises Damaged, naming document or shard, if anything is missing, cut or not of this format."""
        return cls(folder, read_array_layout(folder), max_maps=max_maps)


class RaggedRows(_StoredRows):
    """A store of rows of their own lengths, which `gather` pads with zeros."""

    @classmethod
    def open(cls, folder: Path, *, max_maps: int = MAX_MAPS) -> "RaggedRows":
        """Raises Damaged, naming document or shard, if anything is missing, cut or not of this format."""
        return cls(folder, read_ragged_layout(folder), max_maps=max_maps)


_CURE = "Build it again: run its stage with --force."


def _merged(places: list[tuple[int, int, int]]) -> Iterator[tuple[int, int, int]]:
    """Sorted (shard, start, stop) with neighbours joined."""
    current: tuple[int, int, int] | None = None
    for shard, start, stop in places:
        if current is not None and current[0] == shard and start <= current[2]:
            current = (shard, current[1], max(current[2], stop))
            continue
        if current is not None:
            yield current
        current = (shard, start, stop)
    if current is not None:
        yield current
