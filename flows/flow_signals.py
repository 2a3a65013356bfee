"""SIGTERM in a flow's process: never lost, and sent when the worker that started the process is gone."""

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_PR_SET_PDEATHSIG = 1
_arrived: list[int] = []
"""The reading end of a pipe into which the interpreter writes every signal's number, while in a flow."""


@contextmanager
def heeding_termination() -> Iterator[None]:
    """Remember SIGTERM while inside, so that ``heed_termination`` can raise what Prefect raised for it again.

    Prefect raises from its signal handler, wherever the main thread is: in a library that swallows everything the
    exception is lost and the run would go on until it is killed. Its handler must stay in its place, or it takes
    no cancellation for one: so the signal is read where the interpreter wakes up an event loop.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    _arrived.append(reading)
    try:
        yield
    finally:
        _arrived.remove(reading)
        signal.set_wakeup_fd(before)
        os.close(reading)
        os.close(writing)


def heed_termination() -> None:
    """Raise again if SIGTERM arrived and nothing is being cleaned up; the main thread of a flow only."""
    if _arrived and sys.exception() is None and threading.current_thread() is threading.main_thread():
        try:
            numbers = os.read(_arrived[-1], 64)
        except BlockingIOError:
            return
        if signal.SIGTERM in numbers:
            signal.raise_signal(signal.SIGTERM)


def follow_parent() -> None:
    """Have the kernel send SIGTERM to this process when its parent dies.

    For a process that a worker started: without the worker nobody could cancel it any more.
    """
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGTERM)
