"""States that are encoded ahead of training into a window on the disk, in the order in which training takes them.

One thread runs the encoder and writes blocks of some steps each with the store's own writer; training reads a block
as it reads a store, and a block that was read is deleted. Some blocks, and never more bytes than allowed, lie in the
window's folder at a time. Nothing in it outlives the run: a run that was killed encodes its window anew.
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
from elf.stages.order import Integers
from elf.stages.states import States, Stopped, as_array, as_tensor
from elf.stages.window import cut_window


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
        row_bytes = self.shape[1] * self.shape[2] * STORAGE[self.dtype].dtype.itemsize
        window = cut_window(window_bytes, batch=batch, row_bytes=row_bytes)
        self._steps = window.steps
        self._scratch = np.empty((batch, *self.shape[1:]), STORAGE[self.dtype].dtype)
        self._room = threading.Semaphore(window.blocks)
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
