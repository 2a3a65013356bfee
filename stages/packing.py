"""From token ids of documents to rows of L tokens, and from rows to parquet shards.

Every document ends in exactly one end mark, cut ones included. Text is joined and cut every L tokens; a pair is
one row, condition first. What does not fit is counted, token by token: tokens in = packed + dropped.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from elf.cache.files import write_atomic
from elf.pipeline.errors import Failed
from elf.stages.rows import SCHEMA, ids_of_shard, shard_name

ROWS_PER_SHARD = 16384  # below the 20,000 at which pyarrow begins another page
NAMED = 100


@dataclass(slots=True)
class Named:
    """How many documents something happened to, and the ids of the first ones."""

    count: int = 0
    first: list[str] = field(default_factory=list)

    def add(self, name: str) -> None:
        """Count one."""
        self.count += 1
        if len(self.first) < NAMED:
            self.first.append(name)


@dataclass(frozen=True, slots=True)
class Row:
    """``ids`` (L,) int32, of which ``length`` are tokens (the first ``condition`` of them the condition)."""

    ids: np.ndarray
    condition: int
    length: int
    documents: tuple[str, ...]


class Packer(Protocol):
    """Makes rows of documents, in order. ``cut`` are the documents that lost tokens."""

    dropped: int
    cut: Named

    @property
    def full(self) -> bool:
        """Whether no further row is wanted."""
        ...

    def add(self, name: str, source: np.ndarray, target: np.ndarray) -> list[Row]:
        """Rows that are complete with this document (``source`` is empty for text)."""
        ...

    def finish(self) -> list[Row]:
        """What remains, as a padded row or as dropped tokens."""
        ...


class TextPacker:
    """Joined documents cut every ``length`` tokens; at most ``rows`` rows."""

    def __init__(self, length: int, end_id: int, *, pad: bool, rows: int | None) -> None:
        self.length, self.end_id, self.pad, self.left = length, end_id, pad, rows
        self.dropped = 0
        self.cut = Named()
        self._pieces: list[np.ndarray] = []
        self._names: list[str] = []
        self._filled = 0

    @property
    def full(self) -> bool:
        """Whether no further row is wanted."""
        return self.left == 0

    def add(self, name: str, source: np.ndarray, target: np.ndarray) -> list[Row]:
        """Rows that are complete with this document; ``source`` is unused."""
        rest = np.append(target, np.int32(self.end_id)).astype(np.int32)
        rows: list[Row] = []
        while rest.size and not self.full:
            piece, rest = np.split(rest, [self.length - self._filled])
            self._pieces.append(piece)
            self._names.append(name)
            self._filled += piece.size
            if self._filled == self.length:
                rows.append(self._row())
        if rest.size:
            self._drop(rest.size, [name])
        return rows

    def finish(self) -> list[Row]:
        """The last, part-filled row padded with the end mark, or nothing and its tokens counted as dropped."""
        if not self._filled:
            return []
        if self.pad and not self.full:
            return [self._row()]
        self._drop(self._filled, self._names)
        return []

    def _row(self) -> Row:
        ids = np.full(self.length, self.end_id, dtype=np.int32)
        ids[: self._filled] = np.concatenate(self._pieces)
        row = Row(ids, 0, self._filled, tuple(self._names))
        self._pieces, self._names, self._filled = [], [], 0
        if self.left is not None:
            self.left -= 1
        return row

    def _drop(self, tokens: int, names: Iterable[str]) -> None:
        self.dropped += tokens
        for name in names:
            self.cut.add(name)


class PairPacker:
    """One row a pair: [condition ; target, end mark ; padding with end marks].

    The condition is cut to ``max_source`` and has no end mark. A target that would leave no place for its end
    mark loses its last tokens for it.
    """

    def __init__(self, length: int, end_id: int, *, max_source: int, rows: int | None) -> None:
        self.length, self.end_id, self.max_source, self.left = length, end_id, max_source, rows
        self.dropped = 0
        self.cut = Named()
        self.cut_sources = self.cut_targets = 0

    @property
    def full(self) -> bool:
        """Whether no further row is wanted."""
        return self.left == 0

    def add(self, name: str, source: np.ndarray, target: np.ndarray) -> list[Row]:
        """The row of this pair."""
        condition = source[: self.max_source]
        kept = target[: self.length - condition.size - 1]
        lost = source.size - condition.size + target.size - kept.size
        self.cut_sources += condition.size < source.size
        self.cut_targets += kept.size < target.size
        if lost:
            self.dropped += lost
            self.cut.add(name)
        ids = np.full(self.length, self.end_id, dtype=np.int32)
        ids[: condition.size] = condition
        ids[condition.size : condition.size + kept.size] = kept
        if self.left is not None:
            self.left -= 1
        return [Row(ids, condition.size, condition.size + kept.size + 1, (name,))]

    def finish(self) -> list[Row]:
        """Nothing remains of pairs."""
        return []


class RowShards:
    """Writes rows as ``part-00000.parquet`` …, a fixed number of rows each.

    The ids of a shard are one plain, uncompressed page, so that they can be memory-mapped where they lie.
    """

    def __init__(self, folder: Path, *, shard_rows: int = ROWS_PER_SHARD) -> None:
        self.folder, self.shard_rows = folder, shard_rows
        self.rows = 0
        self._waiting: list[Row] = []
        self._shards = 0

    def add(self, row: Row) -> None:
        """Append one row."""
        self._waiting.append(row)
        if len(self._waiting) == self.shard_rows:
            self._write()

    def close(self) -> None:
        """Write what is still waiting."""
        if self._waiting:
            self._write()

    def _write(self) -> None:
        rows = self._waiting
        ids = np.stack([row.ids for row in rows])
        columns = [
            pa.ListArray.from_arrays(np.arange(len(rows) + 1, dtype=np.int32) * ids.shape[1], ids.ravel()),
            pa.array([row.condition for row in rows], pa.int32()),
            pa.array([row.length for row in rows], pa.int32()),
            pa.array(range(self.rows, self.rows + len(rows)), pa.int64()),
            pa.array([row.documents for row in rows], pa.list_(pa.string())),
        ]
        typed = [column.cast(kind) for column, kind in zip(columns, SCHEMA.types, strict=True)]
        path = self.folder / shard_name(self._shards)
        stream = pa.BufferOutputStream()
        pq.write_table(
            pa.Table.from_arrays(typed, schema=SCHEMA),
            stream,
            row_group_size=len(rows),
            use_dictionary=False,
            compression="NONE",
            data_page_size=2**30,
            write_statistics=False,
        )
        write_atomic(path, stream.getvalue().to_pybytes())
        if not np.array_equal(ids_of_shard(path, ids.shape[1]), ids):
            raise Failed(
                f"{path} was not laid out as one plain page by this pyarrow; install the pinned version."
            )
        self.rows += len(rows)
        self._shards += 1
        self._waiting = []
