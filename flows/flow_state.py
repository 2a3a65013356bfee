"""A flow run looks at its own state on the server, where others write it too.

* *Cancelling*, and nobody cancels: Prefect's worker hears of a cancellation through its connection to the server and
  gives up listening, for the runs it has then, when the server was away. Such a run ends itself.
* *Crashed*, while it lives: whoever misses heartbeats says so, and on a machine that is busy enough they are late.
"""

import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from uuid import UUID

from httpx import HTTPError
from prefect import get_client
from prefect.client.schemas.objects import State, StateType
from prefect.runtime import deployment, flow_run
from prefect.states import Running

from elf.flows.flow_signals import follow_parent

EVERY = 10.0
"""Seconds between two looks."""
LOOKS = 3
"""So often a run must be found *Cancelling* before it ends itself: a worker that listens is faster."""


@contextmanager
def under_worker() -> Iterator[None]:
    """What a run needs that a worker started: it ends with the worker, and when it is cancelled behind its back."""
    if deployment.id is None:
        yield
        return
    follow_parent()
    with watching_state(UUID(flow_run.id)):
        yield


@contextmanager
def watching_state(run: UUID) -> Iterator[None]:
    """While inside, end this process by SIGTERM if it is to be cancelled, and say that it runs if it is called dead."""
    over = threading.Event()
    thread = threading.Thread(target=copy_context().run, args=(_watch, run, over), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()


def is_cancelling(run: UUID) -> bool:
    """Whether somebody asked to cancel a run; False where the server does not answer."""
    state = _read(run)
    return state is not None and state.is_cancelling()


def was_cancelling(states: Sequence[State]) -> bool:
    """Whether the last state of a run before its end was *Cancelling*; ``states`` in any order."""
    open_ones = [state for state in states if not state.is_final()]
    return bool(open_ones) and max(open_ones, key=lambda state: state.timestamp).type is StateType.CANCELLING


def _watch(run: UUID, over: threading.Event) -> None:
    found = 0
    while found < LOOKS and not over.wait(EVERY):
        state = _read(run)
        found = found + 1 if state is not None and state.is_cancelling() else 0
        if state is not None and state.is_crashed() and not over.is_set():
            _say_running(run)
    if found == LOOKS:
        os.kill(os.getpid(), signal.SIGTERM)


def _read(run: UUID) -> State | None:
    try:
        with get_client(sync_client=True) as client:
            return client.read_flow_run(run).state
    except (HTTPError, OSError):
        return None


def _say_running(run: UUID) -> None:
    try:
        with get_client(sync_client=True) as client:
            client.set_flow_run_state(run, Running(message="its process was late, not gone"), force=True)
    except (HTTPError, OSError):
        pass  # the next look tries again
