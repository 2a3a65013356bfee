"""One thread that stays ahead of training: it asks the kernel for rows and gathers them into free buffers."""

import queue
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType

import numpy as np
import numpy.typing as npt

from elf.cache.layout import Array
from elf.cache.rows import Indices, RowSource

AHEAD = 3


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """`rows` (n, length, width) is a view of a buffer that is used again once the next batch is asked for."""

    indices: Indices
    rows: Array
    lengths: npt.NDArray[np.int32]


class Prefetch:
    """Iterate over the batches of a schedule, in its order; close it (or use `with`) when leaving early.

    `buffers` (at least 2, each (batch, length, width) in the stored dtype) may be the caller's, for example
    pinned memory. Rows are asked for `ahead` batches before they are gathered. An error of the thread is
    raised where its batch would have come.
    """

    def __init__(
        self, source: RowSource, schedule: Iterable[Indices], *, buffers: Sequence[Array], ahead: int = AHEAD
    ) -> None:
        if len(buffers) < 2:
            raise ValueError(
                f"{len(buffers)} buffer given; one is read while another is filled, so 2 are needed."
            )
        self._source = source
        self._schedule = iter(schedule)
        self._ahead = ahead
        self._free: queue.SimpleQueue[Array | None] = queue.SimpleQueue()
        self._ready: queue.SimpleQueue[tuple[Array, Batch] | BaseException | None] = queue.SimpleQueue()
        self._closed = threading.Event()
        self._lent: Array | None = None
        for buffer in buffers:
            self._free.put(buffer)
        self._thread = threading.Thread(target=self._work, name="prefetch", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        if self._lent is not None:
            self._free.put(self._lent)
            self._lent = None
        item = self._ready.get()
        if isinstance(item, tuple):
            self._lent, batch = item
            return batch
        self._ready.put(item)  # asked again, the answer is the same
        if item is None:
            raise StopIteration
        raise item

    def close(self) -> None:
        """Stop the thread; no batch comes any more."""
        self._closed.set()
        self._free.put(None)  # wakes a thread that waits for a buffer
        self._thread.join()
        self._lent = None
        self._ready = queue.SimpleQueue()
        self._ready.put(None)

    def __enter__(self) -> "Prefetch":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _work(self) -> None:
        try:
            for indices in self._announced():
                buffer = self._free.get()
                if buffer is None or self._closed.is_set():
                    return
                lengths = self._source.gather(indices, buffer)
                self._ready.put((buffer, Batch(indices, buffer[: len(indices)], lengths)))
            self._ready.put(None)
        except BaseException as error:
            self._ready.put(error)

    def _announced(self) -> Iterator[Indices]:
        """The schedule, each batch asked for from the disk while `ahead` others come first."""
        waiting: deque[Indices] = deque()
        for indices in self._schedule:
            self._source.willneed(indices)
            waiting.append(indices)
            if len(waiting) > self._ahead:
                yield waiting.popleft()
        yield from waiting


def make_buffers(source: RowSource, *, batch: int, count: int = 3) -> list[Array]:
    """Plain buffers for `Prefetch`."""
    return [np.empty((batch, *source.shape[1:]), source.storage) for _ in range(count)]
