"""Where every row of an embedding store lies: a pure function of the layout, the same for writer and reader.

A store is a zarr v3 array of float16, float32 or bfloat16 (its bits as uint16, said in the attributes), whose
shard files begin with raw rows in C order and end with the index of their chunks:

* `ArrayLayout`: array (rows, length, width), one row per inner chunk;
* `RaggedLayout`: array tokens (T, width), 128 tokens per inner chunk, with `starts` (int64) and `lengths`
  (int32) of the rows; a row never straddles a shard, what a shard has left over is fill (NaN).

The fill value is NaN: a missing shard never reads as plausible zeros.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from elf.cache import metadata
from elf.cache.files import crc32c
from elf.cache.manifest import JSON

DType: TypeAlias = Literal["float16", "bfloat16", "float32"]
Array: TypeAlias = npt.NDArray[Any]

CHUNK_TOKENS = 128
_ABSENT = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Storage:
    """How a dtype is stored: numpy dtype, zarr's name and fill value, and the exponent bits of a NaN."""

    dtype: np.dtype[Any]
    bits: np.dtype[Any]
    zarr: str
    fill: JSON
    nan_bits: int
    exponent: int
    attributes: Mapping[str, JSON]


STORAGE: dict[DType, Storage] = {
    "float16": Storage(np.dtype("<f2"), np.dtype("<u2"), "float16", "NaN", 0x7E00, 0x7C00, {}),
    "float32": Storage(np.dtype("<f4"), np.dtype("<u4"), "float32", "NaN", 0x7FC00000, 0x7F800000, {}),
    "bfloat16": Storage(
        np.dtype("<u2"), np.dtype("<u2"), "uint16", 0x7FC0, 0x7FC0, 0x7F80, {"bits_of": "bfloat16"}
    ),
}


class Layout(Protocol):
    """What writer and reader ask of a layout; `shard` counts from 0."""

    @property
    def rows(self) -> int: ...
    @property
    def length(self) -> int: ...
    @property
    def width(self) -> int: ...
    @property
    def dtype(self) -> DType: ...
    @property
    def shards(self) -> int: ...
    @property
    def slots(self) -> int:
        """Inner chunks that a full shard holds."""
        ...

    @property
    def chunk_bytes(self) -> int: ...
    def rows_of(self, shard: int) -> range:
        """The rows that lie in a shard."""
        ...

    def tokens_of(self, shard: int) -> Array:
        """Stored tokens of each row of a shard, int64."""
        ...

    def locate(self, rows: Array) -> tuple[Array, Array, Array]:
        """Shard, first token in it and number of tokens of each of these rows."""
        ...

    def shard_name(self, shard: int) -> str:
        """File of a shard, relative to the store."""
        ...

    def documents(self) -> dict[str, bytes]:
        """Every file of the store that is neither shard nor record."""
        ...


@dataclass(frozen=True)
class ArrayLayout:
    """`rows` × `length` tokens of `width` numbers, `shard_rows` rows per file (the last one partial).

    Raises ValueError where a number is below 1 or the dtype unknown.
    """

    rows: int
    length: int
    width: int
    dtype: DType
    shard_rows: int

    def __post_init__(self) -> None:
        _check_positive(rows=self.rows, length=self.length, width=self.width, shard_rows=self.shard_rows)
        _check_dtype(self.dtype)

    @property
    def shards(self) -> int:
        return -(-self.rows // self.shard_rows)

    @property
    def slots(self) -> int:
        return self.shard_rows

    @property
    def chunk_bytes(self) -> int:
        return self.length * self.width * STORAGE[self.dtype].dtype.itemsize

    def rows_of(self, shard: int) -> range:
        _check_shard(shard, self.shards)
        return range(shard * self.shard_rows, min(self.rows, (shard + 1) * self.shard_rows))

    def tokens_of(self, shard: int) -> Array:
        return np.full(len(self.rows_of(shard)), self.length, np.int64)

    def locate(self, rows: Array) -> tuple[Array, Array, Array]:
        shards, places = np.divmod(rows, self.shard_rows)
        return shards, places * self.length, np.full_like(rows, self.length)

    def shard_name(self, shard: int) -> str:
        return f"c/{shard}/0/0"

    def documents(self) -> dict[str, bytes]:
        storage = STORAGE[self.dtype]
        document = metadata.sharded_array(
            (self.rows, self.length, self.width),
            shard=(self.shard_rows, self.length, self.width),
            chunk=(1, self.length, self.width),
            data_type=storage.zarr,
            fill=storage.fill,
            attributes=storage.attributes,
        )
        return {metadata.DOCUMENT: document}


@dataclass(frozen=True, eq=False)
class RaggedLayout:
    """Rows of `lengths` tokens (at most `length`), packed in order into shards of `shard_tokens` tokens.

    Raises ValueError where a row is too long, none has a token, or shards cannot hold whole rows and chunks.
    """

    lengths: npt.NDArray[np.int32]
    length: int
    width: int
    dtype: DType
    shard_tokens: int
    starts: npt.NDArray[np.int64] = field(init=False)
    firsts: tuple[int, ...] = field(init=False)  # first row of each shard, then the number of rows

    def __post_init__(self) -> None:
        _check_positive(rows=self.rows, length=self.length, width=self.width, shard_tokens=self.shard_tokens)
        _check_dtype(self.dtype)
        if self.shard_tokens % CHUNK_TOKENS or self.shard_tokens < self.length:
            raise ValueError(
                f"shard_tokens is {self.shard_tokens}; it must be a multiple of {CHUNK_TOKENS} and "
                f"hold a whole row of {self.length} tokens."
            )
        if int(self.lengths.min()) < 0 or int(self.lengths.max()) > self.length:
            row = int(np.argmax((self.lengths < 0) | (self.lengths > self.length)))
            raise ValueError(f"row {row} has {self.lengths[row]} tokens, allowed are 0 to {self.length}.")
        if not self.lengths.any():
            raise ValueError("no row has a token; there is nothing to store.")
        starts, firsts = _pack(self.lengths, self.shard_tokens)
        object.__setattr__(self, "starts", starts)
        object.__setattr__(self, "firsts", firsts)

    @property
    def rows(self) -> int:
        return len(self.lengths)

    @property
    def shards(self) -> int:
        return len(self.firsts) - 1

    @property
    def slots(self) -> int:
        return self.shard_tokens // CHUNK_TOKENS

    @property
    def chunk_bytes(self) -> int:
        return CHUNK_TOKENS * self.width * STORAGE[self.dtype].dtype.itemsize

    @cached_property
    def total(self) -> int:
        """Length of the token array, fill between shards included."""
        return int(self.starts[-1]) + int(self.lengths[-1])

    def rows_of(self, shard: int) -> range:
        _check_shard(shard, self.shards)
        return range(self.firsts[shard], self.firsts[shard + 1])

    def tokens_of(self, shard: int) -> Array:
        rows = self.rows_of(shard)
        return self.lengths[rows.start : rows.stop].astype(np.int64)

    def locate(self, rows: Array) -> tuple[Array, Array, Array]:
        shards = np.searchsorted(self.firsts, rows, side="right") - 1
        return shards, self.starts[rows] - shards * self.shard_tokens, self.lengths[rows]

    def shard_name(self, shard: int) -> str:
        return f"tokens/c/{shard}/0"

    def documents(self) -> dict[str, bytes]:
        storage = STORAGE[self.dtype]
        tokens = metadata.sharded_array(
            (self.total, self.width),
            shard=(self.shard_tokens, self.width),
            chunk=(CHUNK_TOKENS, self.width),
            data_type=storage.zarr,
            fill=storage.fill,
            attributes=storage.attributes,
        )
        return {
            f"tokens/{metadata.DOCUMENT}": tokens,
            f"starts/{metadata.DOCUMENT}": metadata.plain_array(self.rows, "int64"),
            "starts/c/0": self.starts.astype("<i8").tobytes(),
            f"lengths/{metadata.DOCUMENT}": metadata.plain_array(self.rows, "int32"),
            "lengths/c/0": self.lengths.astype("<i4").tobytes(),
            metadata.DOCUMENT: metadata.group({"length": self.length}),
        }


def used_slots(layout: Layout, shard: int) -> int:
    """Inner chunks that are present in a shard; they come first, the others are absent."""
    tokens = int(layout.tokens_of(shard).sum())
    return -(-tokens * layout.width * STORAGE[layout.dtype].dtype.itemsize // layout.chunk_bytes)


@lru_cache(maxsize=8)  # all shards of a store but the last share one
def footer(*, slots: int, used: int, chunk_bytes: int) -> bytes:
    """The index that ends a shard: offset and size of every inner chunk as uint64, then its crc32c."""
    index = np.full((slots, 2), _ABSENT, "<u8")
    index[:used, 0] = np.arange(used, dtype=np.uint64) * np.uint64(chunk_bytes)
    index[:used, 1] = chunk_bytes
    raw = index.tobytes()
    return raw + struct.pack("<I", crc32c(raw))


def _pack(lengths: npt.NDArray[np.int32], capacity: int) -> tuple[npt.NDArray[np.int64], tuple[int, ...]]:
    ends = np.cumsum(lengths, dtype=np.int64)
    starts = ends - lengths
    firsts = [0]
    while firsts[-1] < len(lengths):
        first, shard = firsts[-1], len(firsts) - 1
        before = int(starts[first])  # still unshifted: rows of this shard come later in `ends` only
        stop = int(np.searchsorted(ends, before + capacity, side="right"))
        starts[first:stop] += shard * capacity - before
        firsts.append(stop)
    return starts, tuple(firsts)


def _check_positive(**numbers: int) -> None:
    for name, number in numbers.items():
        if number < 1:
            raise ValueError(f"{name} is {number}; a store needs at least 1.")


def _check_dtype(dtype: str) -> None:
    if dtype not in STORAGE:
        raise ValueError(f"{dtype!r} is no dtype of a store; it must be one of {', '.join(STORAGE)}.")


def _check_shard(shard: int, shards: int) -> None:
    if not 0 <= shard < shards:
        raise IndexError(f"there is no shard {shard}; the store has shards 0 to {shards - 1}.")
