"""A store of random rows for measurements."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from elf.cache.layout import Array, ArrayLayout
from elf.cache.shards import finalise, write_metadata, write_shard

WIDTH = 512
BATCH_BYTES = 32 * 2**20
SHARD_BYTES = 128 * 2**20


@dataclass(frozen=True, slots=True)
class Case:
    """A store of ``rows`` rows of one size, in a folder of its own."""

    folder: Path
    layout: ArrayLayout

    @classmethod
    def write(cls, folder: Path, length: int, size: int) -> "Case":
        row_bytes = length * WIDTH * 2
        layout = ArrayLayout(size // row_bytes, length, WIDTH, "float16", SHARD_BYTES // row_bytes)
        write_metadata(folder, layout)
        for shard in range(layout.shards):
            write_shard(folder, layout, shard, [random_rows(len(layout.rows_of(shard)), length, seed=shard)])
        finalise(folder, layout)
        return cls(folder, layout)

    @property
    def batch(self) -> int:
        return BATCH_BYTES // self.layout.chunk_bytes

    @property
    def row_kib(self) -> int:
        return self.layout.chunk_bytes // 1024

    def buffer(self) -> Array:
        return np.empty((self.batch, self.layout.length, WIDTH), np.float16)

    def batches(self, count: int, *, seed: int = 0) -> list[Array]:
        """Disjoint batches of shuffled rows."""
        order = np.random.default_rng(seed).permutation(self.layout.rows)
        count = min(count, len(order) // self.batch)
        return [order[number * self.batch : (number + 1) * self.batch] for number in range(count)]

    def shards(self) -> list[Path]:
        return [self.folder / self.layout.shard_name(shard) for shard in range(self.layout.shards)]


def random_rows(rows: int, length: int, *, seed: int) -> Array:
    """Finite float16 rows that do not compress."""
    bits = np.random.default_rng(seed).integers(0, 2**16, (rows, length, WIDTH), np.uint16)
    return (bits & np.uint16(0xBFFF)).view(np.float16)
