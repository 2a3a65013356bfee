"""The most recently used of many things that are dear to keep open; safe to share between threads."""

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Recent(Generic[T]):
    """Things by number, opened on demand, at most ``limit`` of them. One that has to go closes itself once its last
    user lets go of it."""

    def __init__(self, opened: Callable[[int], T], limit: int) -> None:
        self._open = opened
        self._limit = limit
        self._kept: OrderedDict[int, T] = OrderedDict()
        self._lock = threading.Lock()

    def __getitem__(self, number: int) -> T:
        with self._lock:
            found = self._kept.get(number)
            if found is None:
                found = self._kept[number] = self._open(number)
                if len(self._kept) > self._limit:
                    self._kept.popitem(last=False)
            else:
                self._kept.move_to_end(number)
            return found
