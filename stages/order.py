"""In which order rows are trained on: a pure function of (seed, epoch, position), on any number of processes.

Training reads one endless stream of positions; position p is place ``p % rows`` of epoch ``p // rows``, and
within an epoch every row comes exactly once. Batches are cut from the stream, so a batch may begin in one
epoch and end in the next, and all are full. Any place is found without a table: a keyed permutation (an
unbalanced Feistel network on the next power of two, walked until it lands inside; Black and Rogaway, "Ciphers
with arbitrary finite domains", 2002).
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]

ROUNDS = 8  # even, so that the two halves end with the widths they began with
_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


@dataclass(frozen=True, slots=True)
class Order:
    """The order of ``rows`` rows under ``seed``; ``rows`` ≥ 1, any integer seed."""

    rows: int
    seed: int

    def __post_init__(self) -> None:
        if self.rows < 1:
            raise ValueError(f"an order needs at least 1 row, not {self.rows}")

    def at(self, positions: npt.ArrayLike) -> Integers:
        """Rows (int64, in [0, rows)) at positions ≥ 0 of the stream, in the shape of ``positions``."""
        places = np.asarray(positions, dtype=np.int64)
        if places.size and int(places.min()) < 0:
            raise ValueError(f"position {int(places.min())} lies before the stream's begin, 0")
        epochs, index = np.divmod(places, self.rows)
        found = np.empty(places.shape, np.int64)
        for epoch in np.unique(epochs):
            here = epochs == epoch
            found[here] = permute(index[here], self.rows, _keys(self.seed, int(epoch)))
        return found

    def batch(self, step: int, size: int) -> Integers:
        """Rows of the global batch of optimiser step ``step`` (from 0), ``size`` of them."""
        return self.at(np.arange(step * size, (step + 1) * size, dtype=np.int64))


def permute(index: Integers, count: int, keys: npt.NDArray[np.uint64]) -> Integers:
    """Where a permutation of [0, count) chosen by the round ``keys`` sends each index."""
    bits = (count - 1).bit_length()
    found = _scramble(index.astype(np.uint64), bits, keys)
    while (outside := np.flatnonzero(found >= np.uint64(count))).size:
        found[outside] = _scramble(found[outside], bits, keys)
    return found.astype(np.int64)


def _scramble(
    value: npt.NDArray[np.uint64], bits: int, keys: npt.NDArray[np.uint64]
) -> npt.NDArray[np.uint64]:
    """One pass of the network over [0, 2^bits): (left, right) → (right, left xor F(right))."""
    width_left, width_right = bits - bits // 2, bits // 2
    left = value >> np.uint64(width_right)
    right = value & np.uint64((1 << width_right) - 1)
    for key in keys:
        mixed = _mix(right ^ key)
        left, right = right, left ^ (mixed & np.uint64((1 << width_left) - 1))
        width_left, width_right = width_right, width_left
    return (left << np.uint64(width_right)) | right


def _mix(value: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The finaliser of splitmix64 (Steele, Lea and Flood, 2014); array arithmetic wraps silently."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


def _keys(seed: int, epoch: int) -> npt.NDArray[np.uint64]:
    """One key a round."""
    base = np.array([(seed + _GOLDEN) & _MASK], np.uint64)
    chosen = _mix(_mix(base) + np.array([epoch * _GOLDEN & _MASK], np.uint64))
    return _mix(chosen + np.array([number * _GOLDEN & _MASK for number in range(ROUNDS)], np.uint64))
