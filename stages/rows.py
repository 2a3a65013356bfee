"""Rows of a tokenize artifact, read where they lie: the ids are memory-mapped, nothing of them is loaded.

    TokenRows.open(path).ids(indices)      (n, L) int32, tokenizer ids

A shard's ``input_ids`` are one plain, uncompressed parquet page, whose values are the last bytes of its column.
"""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from elf.cache.errors import Damaged
from elf.stages.json_files import read_json
from elf.stages.vocabulary import Vocabulary

SCHEMA = pa.schema(
    [
        pa.field("input_ids", pa.list_(pa.field("element", pa.int32(), nullable=False)), nullable=False),
        pa.field("condition_length", pa.int32(), nullable=False),
        pa.field("length", pa.int32(), nullable=False),
        pa.field("row", pa.int64(), nullable=False),
        pa.field("documents", pa.list_(pa.field("element", pa.string(), nullable=False)), nullable=False),
    ]
)
ROWS = "rows"
VOCABULARY = "vocabulary.json"
COUNTS = "counts.json"


def shard_name(index: int) -> str:
    """File name of shard ``index``."""
    return f"part-{index:05d}.parquet"


@contextmanager
def _whole(path: Path) -> Generator[None]:
    """Turn what the library says of a damaged file into Damaged."""
    try:
        yield
    except (pa.ArrowException, KeyError, OSError) as error:
        raise Damaged(
            f"{path} is no whole parquet file ({error}); run tokenize again with --force."
        ) from error


def _columns(path: Path, *names: str) -> pa.Table:
    with _whole(path):
        return pq.read_table(path, columns=list(names))


def ids_of_shard(path: Path, length: int) -> np.ndarray:
    """A read-only memory map (rows, length) int32 of a shard's ids. Raises Damaged where it cannot be one."""
    with _whole(path):
        metadata = pq.read_metadata(path)
    column = metadata.row_group(0).column(0)
    values = metadata.num_rows * length
    plain = column.compression == "UNCOMPRESSED" and column.dictionary_page_offset is None
    if metadata.num_row_groups != 1 or column.num_values != values or not plain:
        raise Damaged(
            f"{path} holds {column.num_values:,} ids in {metadata.num_rows:,} rows, not one plain page of "
            f"{length} a row; run tokenize again with --force."
        )
    start = column.data_page_offset + column.total_compressed_size - 4 * values
    return np.memmap(path, dtype="<i4", mode="r", offset=start, shape=(metadata.num_rows, length))


@dataclass(frozen=True, slots=True, eq=False)
class TokenRows:
    """All rows of a finished tokenize artifact, by index from 0."""

    path: Path
    vocabulary: Vocabulary
    _ids: tuple[np.ndarray, ...]
    _starts: np.ndarray
    _condition: np.ndarray
    _length: np.ndarray

    @classmethod
    def open(cls, path: Path) -> "TokenRows":
        """The rows of the artifact folder ``path``. Raises Damaged for missing, cut or foreign shards."""
        vocabulary = Vocabulary.read(path / VOCABULARY)
        promised = read_json(path / COUNTS)["rows"]
        shards = sorted((path / ROWS).glob("part-*.parquet"))
        if [shard.name for shard in shards] != [shard_name(index) for index in range(len(shards))]:
            raise Damaged(f"{path / ROWS} lacks a shard; run tokenize again with --force.")
        ids = tuple(ids_of_shard(shard, vocabulary.length) for shard in shards)
        starts = np.cumsum([0, *(part.shape[0] for part in ids)])
        if starts[-1] != promised:
            raise Damaged(
                f"{path / ROWS} holds {starts[-1]:,} rows, {COUNTS} says {promised:,}: a shard is gone; run tokenize "
                "again with --force."
            )
        table = pa.concat_tables([_columns(shard, "condition_length", "length") for shard in shards])
        condition, length = (table[name].to_numpy() for name in ("condition_length", "length"))
        return cls(path, vocabulary, ids, starts, condition, length)

    @property
    def rows(self) -> int:
        """Number of rows."""
        return int(self._starts[-1])

    @property
    def length(self) -> int:
        """L, tokens per row."""
        return self.vocabulary.length

    def ids(self, indices: np.ndarray) -> np.ndarray:
        """Tokenizer ids (n, L) int32 of rows ``indices`` (n,), padding included."""
        indices = self._checked(indices)
        out = np.empty((indices.size, self.length), dtype=np.int32)
        shards = np.searchsorted(self._starts, indices, side="right") - 1
        for shard in np.unique(shards):
            here = shards == shard
            out[here] = self._ids[shard][indices[here] - self._starts[shard]]
        return out

    def condition_lengths(self, indices: np.ndarray) -> np.ndarray:
        """Tokens of the condition (n,) int32; 0 for text."""
        return self._condition[self._checked(indices)]

    def lengths(self, indices: np.ndarray) -> np.ndarray:
        """Tokens that are not padding (n,) int32."""
        return self._length[self._checked(indices)]

    def documents(self, index: int) -> tuple[str, ...]:
        """Ids of the documents that row ``index`` holds tokens of."""
        row = int(self._checked(np.array([index]))[0])
        shard = int(np.searchsorted(self._starts, row, side="right")) - 1
        names = _names(self.path / ROWS / shard_name(shard))
        return tuple(names[row - int(self._starts[shard])].as_py())

    def _checked(self, indices: np.ndarray) -> np.ndarray:
        indices = np.asarray(indices, dtype=np.int64)
        if indices.size and not (indices.min() >= 0 and indices.max() < self.rows):
            raise IndexError(
                f"Rows {indices.min()} to {indices.max()} of {self.path}, which has {self.rows}."
            )
        return indices


@lru_cache(maxsize=4)
def _names(shard: Path) -> pa.ChunkedArray:
    return _columns(shard, "documents")["documents"]
