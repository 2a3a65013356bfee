"""Where the raw states of rows come from: one protocol for a store, for an encoder that runs now, for a window of it.

Shapes: B rows, L positions, D width. ``drop_B`` (B,) bool, on the CPU, says of pairs whose condition is dropped: such
a row has zeros for its condition and a target that never saw it. The numbers are those of the stored dtype.
"""

from collections.abc import Mapping
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from elf.cache.layout import STORAGE, Array, DType
from elf.cache.rows import RaggedRows, Rows
from elf.stages.order import Integers
from elf.stages.rows import TokenRows

PLAIN = "plain"
PAIR_VIEWS = ("condition", "target_given_condition", "target")


class States(Protocol):
    """States of the rows of one split."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Rows, length, width."""
        ...

    @property
    def dtype(self) -> DType: ...

    def willneed(self, rows: Integers, drop_B: Tensor) -> None:
        """These rows come soon; returns at once."""
        ...

    def read(self, rows: Integers, drop_B: Tensor, out: Array) -> Tensor:
        """States (B, L, D): in ``out``, whose first B rows are written, or on the device that made them."""
        ...

    def stop(self) -> None:
        """Nothing more is wanted: whoever waits in ``read`` gets Stopped, and nothing of it stays on the disk."""
        ...


class Stopped(Exception):
    """``read`` was given up because ``stop`` was called."""


class StoredStates:
    """States of a finished store: the view ``plain`` of text, or those of pairs."""

    def __init__(self, tokens: TokenRows, views: Mapping[str, Rows | RaggedRows]) -> None:
        self.tokens, self.views = tokens, views
        first = next(iter(views.values()))
        self.shape = first.shape
        self.dtype: DType = first.dtype

    def willneed(self, rows: Integers, drop_B: Tensor) -> None:
        for name, places in _by_view(self.views, drop_B).items():
            self.views[name].willneed(rows[places])

    def read(self, rows: Integers, drop_B: Tensor, out: Array) -> Tensor:
        """Raises Damaged where a row's bytes are not those that were stored."""
        out = out[: len(rows)]
        conditions = self.tokens.condition_lengths(rows).tolist()
        for name, places in _by_view(self.views, drop_B).items():
            if name == PLAIN:
                parts = list(out)
            elif name == "condition":
                parts = [out[place, : conditions[place]] for place in places]
            else:
                parts = [out[place, conditions[place] :] for place in places]
            self.views[name].fill(rows[places], parts)
        for place in np.flatnonzero(drop_B.numpy()):
            out[place, : conditions[place]] = 0
        return as_tensor(out, self.dtype)

    def stop(self) -> None:
        pass


class NoStates:
    """Of rows of which only the ids are wanted: states of no width."""

    def __init__(self, tokens: TokenRows) -> None:
        self.shape = (tokens.rows, tokens.length, 0)
        self.dtype: DType = "float32"

    def willneed(self, rows: Integers, drop_B: Tensor) -> None:
        pass

    def read(self, rows: Integers, drop_B: Tensor, out: Array) -> Tensor:
        return as_tensor(out[: len(rows)], self.dtype)

    def stop(self) -> None:
        pass


def _by_view(views: Mapping[str, object], drop_B: Tensor) -> dict[str, Integers]:
    """Which places of a batch need which view."""
    if PLAIN in views:
        return {PLAIN: np.arange(len(drop_B))}
    kept, dropped = np.flatnonzero(~drop_B.numpy()), np.flatnonzero(drop_B.numpy())
    needed = {"condition": kept, "target_given_condition": kept, "target": dropped}
    return {name: places for name, places in needed.items() if places.size}


def as_tensor(stored: Array, dtype: DType) -> Tensor:
    """Stored numbers as a tensor of their dtype, the same memory."""
    tensor = torch.from_numpy(stored)
    return tensor.view(torch.bfloat16) if dtype == "bfloat16" else tensor


def as_array(states: Tensor, dtype: DType) -> Array:
    """States on the CPU as the numbers that a store holds, the same memory."""
    bits = states.view(torch.int16) if dtype == "bfloat16" else states
    return bits.numpy().view(STORAGE[dtype].dtype)
