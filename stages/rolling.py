"""States that are encoded ahead of training into a window on the disk, in the order in which training takes them.

One thread runs the encoder and writes blocks of some steps each with the store's own writer; training reads a block
as it reads a store, and a block that was read is deleted. At most BLOCKS of them, and never more bytes than allowed,
lie in the window's folder at a time. Nothing in it outlives the run: a run that was killed encodes its window anew.
Shapes: B rows, L positions, D width.
"""

import queue
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from torch import Tensor

from elf.cache.files import remove_tree
from elf.cache.layout import STORAGE, Array, ArrayLayout, DType
from elf.cache.rows import Rows
from elf.cache.shards import write_metadata, write_shard
from elf.pipeline.errors import Misconfigured
from elf.pipeline.wording import bytes_text
from elf.stages.order import Integers
from elf.stages.states import States, Stopped, as_array, as_tensor

BLOCKS = 8
_ROW_EXTRA, _BLOCK_EXTRA = 24, 8192
"""Bytes of a row's index entry and checksum; of a block's descriptions."""


@dataclass(frozen=True, slots=True, eq=False)
class Wanted:
    """What one step takes: ``rows`` (B,) and whose condition is dropped."""

    rows: Integers
    drop_B: Tensor

    def equals(self, rows: Integers, drop_B: Tensor) -> bool:
        return np.array_equal(self.rows, rows) and bool((self.drop_B == drop_B).all())


@dataclass(frozen=True, slots=True, eq=False)
class _Block:
    """Some steps' states, one after another; ``left`` are those not taken yet, with their first row's place."""

    folder: Path
    rows: Rows
    left: deque[tuple[int, Wanted]]


class RollingStates:
    """What ``made`` gives for the steps of ``schedule``, read in that order and no other.

    ``batch`` is the most rows of a step; ``window_bytes`` the disk that may be taken, at least two steps' worth.
    """

    def __init__(
        self, made: States, schedule: Iterable[Wanted], *, batch: int, folder: Path, window_bytes: int
    ) -> None:
        self.shape = made.shape
        self.dtype: DType = made.dtype
        self._made, self._folder = made, folder
        self._schedule = iter(schedule)
        self._steps, blocks = self._cut(batch, window_bytes)
        self._scratch = np.empty((batch, *self.shape[1:]), STORAGE[self.dtype].dtype)
        self._room = threading.Semaphore(blocks)
        self._ready: queue.SimpleQueue[_Block | BaseException] = queue.SimpleQueue()
        self._current: _Block | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._work, name="rolling", daemon=True)
        self._thread.start()

    def willneed(self, rows: Integers, drop_B: Tensor) -> None:
        pass

    def read(self, rows: Integers, drop_B: Tensor, out: Array) -> Tensor:
        """The next step's states. Raises what the encoder or the disk refused; ValueError out of order."""
        if self._current is None:
            item = self._ready.get()
            if isinstance(item, BaseException):
                self._ready.put(item)  # asked again, the answer is the same
                raise item
            self._current = item
        block = self._current
        first, wanted = block.left.popleft()
        if not wanted.equals(rows, drop_B):
            raise ValueError(f"the window holds rows {wanted.rows[:4]}… next, not rows {rows[:4]}….")
        block.rows.gather(range(first, first + len(rows)), out)
        if not block.left:
            self._current = None
            remove_tree(block.folder)
            self._room.release()
        return as_tensor(out[: len(rows)], self.dtype)

    def stop(self) -> None:
        self._stopped.set()
        self._made.stop()
        self._room.release()  # wakes the thread
        self._ready.put(Stopped())  # wakes who reads
        self._thread.join()
        remove_tree(self._folder)

    def _cut(self, batch: int, window_bytes: int) -> tuple[int, int]:
        """Steps of a block and blocks at a time. Raises Misconfigured where not even two steps fit."""
        _, length, width = self.shape
        step = batch * (length * width * STORAGE[self.dtype].dtype.itemsize + _ROW_EXTRA)
        steps = max(1, (window_bytes // BLOCKS - _BLOCK_EXTRA) // step)
        blocks = min(BLOCKS, window_bytes // (steps * step + _BLOCK_EXTRA))
        if blocks < 2:
            raise Misconfigured(
                f"With compute.train.source: rolling, a process may take {bytes_text(window_bytes)} of disk, and two "
                f"steps of {batch} rows take {bytes_text(2 * (step + _BLOCK_EXTRA))}. Raise "
                "compute.train.window_bytes, free some disk, or set compute.train.source to live, which takes none."
            )
        return steps, blocks

    def _work(self) -> None:
        try:
            number = 0
            while steps := list(islice(self._schedule, self._steps)):
                self._room.acquire()
                if self._stopped.is_set():
                    return
                self._ready.put(self._write(self._folder / str(number), steps))
                number += 1
            self._ready.put(ValueError("the window's schedule is at its end."))
        except BaseException as error:
            self._ready.put(error)

    def _write(self, folder: Path, steps: list[Wanted]) -> _Block:
        counts = [len(each.rows) for each in steps]
        total = sum(counts)
        layout = ArrayLayout(total, *self.shape[1:], self.dtype, total)
        write_metadata(folder, layout)
        write_shard(folder, layout, 0, self._encoded(steps))
        firsts = np.cumsum([0, *counts[:-1]]).tolist()
        return _Block(folder, Rows.open(folder), deque(zip(firsts, steps, strict=True)))

    def _encoded(self, steps: list[Wanted]) -> Iterator[Array]:
        for each in steps:
            yield as_array(self._made.read(each.rows, each.drop_B, self._scratch).cpu(), self.dtype)
