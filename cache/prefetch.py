"""One thread that stays ahead: what is wanted in an order known beforehand is announced, then made in free buffers."""

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from elf.cache.layout import Array
from elf.cache.rows import Indices, RowSource

Want = TypeVar("Want")
Made = TypeVar("Made")

AHEAD = 3
BUFFERS = 3
"""One that is used, one that is ready, one that is being filled."""


class Ahead(Generic[Want, Made]):
    """Iterate over what is made of a schedule, in its order; close it (or use `with`) when leaving early.

    `announce` is told of each item while `ahead` others come first (to start reading it from the disk); `make` makes
    it in a buffer, which is used again once the next item is asked for. An error of the thread is raised where its
    item would have come.
    """

    def __init__(
        self,
        schedule: Iterable[Want],
        make: Callable[[Want, Array], Made],
        *,
        announce: Callable[[Want], None],
        buffers: Sequence[Array],
        ahead: int = AHEAD,
        name: str = "ahead",
    ) -> None:
        if len(buffers) < 2:
            raise ValueError(
                f"{len(buffers)} buffer given; one is read while another is filled, so 2 are needed."
            )
        self._schedule = iter(schedule)
        self._make, self._announce = make, announce
        self._ahead = ahead
        self._free: queue.SimpleQueue[Array | None] = queue.SimpleQueue()
        self._ready: queue.SimpleQueue[tuple[Array, Made] | BaseException | None] = queue.SimpleQueue()
        self._closed = threading.Event()
        self._lent: Array | None = None
        for buffer in buffers:
            self._free.put(buffer)
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[Made]:
        return self

    def __next__(self) -> Made:
        if self._lent is not None:
            self._free.put(self._lent)
            self._lent = None
        item = self._ready.get()
        if isinstance(item, tuple):
            self._lent, made = item
            return made
        self._ready.put(item)  # asked again, the answer is the same
        if item is None:
            raise StopIteration
        raise item

    def close(self) -> None:
        """Stop the thread; nothing comes any more."""
        self._closed.set()
        self._free.put(None)  # wakes a thread that waits for a buffer
        self._thread.join()
        self._lent = None
        self._ready = queue.SimpleQueue()
        self._ready.put(None)

    def __enter__(self) -> Iterator[Made]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _work(self) -> None:
        try:
            for item in self._announced():
                buffer = self._free.get()
                if buffer is None or self._closed.is_set():
                    return
                self._ready.put((buffer, self._make(item, buffer)))
            self._ready.put(None)
        except BaseException as error:
            self._ready.put(error)

    def _announced(self) -> Iterator[Want]:
        """The schedule, each item announced while `ahead` others come first."""
        waiting: deque[Want] = deque()
        for item in self._schedule:
            self._announce(item)
            waiting.append(item)
            if len(waiting) > self._ahead:
                yield waiting.popleft()
        yield from waiting


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """`rows` (n, length, width) is a view of a buffer that is used again once the next batch is asked for."""

    indices: Indices
    rows: Array
    lengths: npt.NDArray[np.int32]


class Prefetch(Ahead[Indices, Batch]):
    """Batches of a store's rows; `buffers`, each (batch, length, width) in the stored dtype, may be the caller's, for
    example pinned memory."""

    def __init__(
        self, source: RowSource, schedule: Iterable[Indices], *, buffers: Sequence[Array], ahead: int = AHEAD
    ) -> None:
        def gather(indices: Indices, buffer: Array) -> Batch:
            lengths = source.gather(indices, buffer)
            return Batch(indices, buffer[: len(indices)], lengths)

        super().__init__(
            schedule, gather, announce=source.willneed, buffers=buffers, ahead=ahead, name="prefetch"
        )


def make_buffers(source: RowSource, *, batch: int, count: int = BUFFERS) -> list[Array]:
    """Plain buffers for `Prefetch`."""
    return [np.empty((batch, *source.shape[1:]), source.storage) for _ in range(count)]
