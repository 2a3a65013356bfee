"""SIGTERM in a flow's process: never lost, and sent when the worker that started the process is gone."""

import ctypes
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_PR_SET_PDEATHSIG = 1
_again: list[Callable[[], None]] = []


@contextmanager
def heeding_termination() -> Iterator[None]:
    """Remember SIGTERM while inside, so that ``heed_termination`` can raise what Prefect raised for it again.

    Prefect raises from its signal handler, wherever the main thread is: in a library that swallows everything the
    exception is lost and the run would go on until it is killed.
    """
    before = signal.getsignal(signal.SIGTERM)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return

    def remember(number: int, frame: FrameType | None) -> None:
        _again.append(lambda: before(number, frame))
        before(number, frame)

    _again.clear()
    signal.signal(signal.SIGTERM, remember)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def heed_termination() -> None:
    """Raise again if SIGTERM arrived; the main thread of a flow only."""
    if _again and threading.current_thread() is threading.main_thread():
        _again[0]()


def follow_parent() -> None:
    """Have the kernel send SIGTERM to this process when its parent dies.

    For a process that a worker started: without the worker nobody could cancel it any more.
    """
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGTERM)
