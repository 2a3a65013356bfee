"""Files moved several at once by threads, and counted where the caller is."""

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from typing import Final, TypeAlias

FILES: Final = 4
"""Files in flight; each holds a few parts in memory."""
POLL = 0.2

Meter: TypeAlias = Callable[[int, int], AbstractContextManager[Callable[[int], None]]]
"""Opens a display for so many bytes in all, of which so many are there already; yields what counts more of them."""


class Tally:
    """Bytes moved by threads since the last `take`; `add` ends a thread whose transfer was given up."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bytes = 0
        self._over = False

    def add(self, count: int) -> None:
        """Count bytes. Raises TransferEnded once `end` was called."""
        with self._lock:
            if self._over:
                raise TransferEnded
            self._bytes += count

    def take(self) -> int:
        with self._lock:
            taken, self._bytes = self._bytes, 0
        return taken

    def end(self) -> None:
        with self._lock:
            self._over = True


class TransferEnded(Exception):
    """Another file failed, or somebody pressed Ctrl-C; never leaves `transfer`."""


def transfer(
    names: Iterable[str],
    move: Callable[[str, Tally], None],
    count: Callable[[int], None],
    *,
    files: int = FILES,
) -> None:
    """Call `move` for every name, `files` of them at a time; the first failure ends the others and is raised.

    `count` is called by the caller's thread alone, a few times a second.
    """
    tally = Tally()
    with ThreadPoolExecutor(files, thread_name_prefix="transfer") as pool:
        left = {pool.submit(move, name, tally) for name in names}
        try:
            while left:
                done, left = wait(left, timeout=POLL, return_when=FIRST_EXCEPTION)
                count(tally.take())
                for each in done:
                    each.result()
        except BaseException:
            tally.end()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
