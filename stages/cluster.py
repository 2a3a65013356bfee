"""Parts of a stage spread over Dask workers: processes of this host, or those of a scheduler that is named.

A part is a pure function of the job and its own name, so that a part whose worker died is simply done again. What a
part refuses to do (``Failed``, ``CacheError``) is not tried twice. Local workers listen on the loopback interface
only and end with this process, however it ends.
"""

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Generator, Hashable, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any, TypeVar, cast

import dask
import torch
from distributed import Client, Future, KilledWorker, LocalCluster, get_worker, wait
from distributed.client import FutureCancelledError, FuturesCancelledError
from distributed.comm.core import CommClosedError

from elf.cache.errors import CacheError
from elf.cache.files import make_folder, remove_tree
from elf.pipeline.errors import Failed, Misconfigured
from elf.pipeline.launch import child_environment
from elf.stages.memory import set_threads

P = TypeVar("P", bound=Hashable)
Work = Callable[[Any, Any, Callable[[int], None]], None]
"""(job, part, advance): does one part, telling ``advance`` how much of it is done."""

RETRIES = 2
_TOPIC = "elf-parts"
_EVERY = 0.5


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a part cannot be done; trying again would not help."""

    text: str


@contextmanager
def local_workers(workers: int, threads: int, scratch: Path) -> Generator[Client]:
    """A client of ``workers`` new processes with ``threads`` torch threads each; ``scratch`` is theirs alone."""
    settings = {
        # Malloc and OpenMP read their environment once, as a process starts.
        "distributed.nanny.pre-spawn-environ": child_environment(threads),
        "distributed.scheduler.dashboard.status.task-stream-length": 0,
        "distributed.scheduler.http.routes": [],
        "distributed.worker.http.routes": [],
        "distributed.admin.event-loop-monitor-interval": "60s",
        "distributed.admin.tick.limit": "1h",
        "logging.distributed": "critical",
    }
    remove_tree(scratch)
    make_folder(scratch)
    with ExitStack() as stack:
        stack.callback(remove_tree, scratch)
        stack.enter_context(_quiet())
        stack.enter_context(dask.config.set(settings))  # pyright: ignore[reportPrivateImportUsage]
        with _without_interrupts(), _starting():
            cluster = LocalCluster(
                n_workers=workers,
                threads_per_worker=1,
                processes=True,
                host="127.0.0.1",
                dashboard_address="127.0.0.1:0",
                worker_dashboard_address="127.0.0.1:0",
                memory_limit=0,
                local_directory=str(scratch),
                silence_logs=logging.CRITICAL,
            )
        stack.enter_context(cluster)
        client = stack.enter_context(Client(cluster, set_as_default=False))
        client.run(set_threads, threads)
        yield client


@contextmanager
def _without_interrupts() -> Generator[None]:
    """Threads and processes that are started here never get SIGINT: Ctrl-C is this process's to deal with."""
    resource_tracker.ensure_running()  # starting it unblocks SIGINT
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _quiet() -> Generator[None]:
    """Dask's own lines go nowhere, where somebody gave the root logger a handler (Prefect does) as well."""
    logger = logging.getLogger("distributed")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


@contextmanager
def _starting() -> Generator[None]:
    try:
        yield
    except (RuntimeError, TimeoutError) as error:
        raise Failed(
            f"The worker processes of encode did not all start ({error}): one was killed, perhaps for want of memory. "
            "The same command tries again; fewer compute.encode.workers need less."
        ) from error


@contextmanager
def named_scheduler(address: str, *, patience: str = "20s") -> Generator[Client]:
    """A client of the scheduler at ``address``. Its workers need this program and the folders of the store."""
    try:
        client = Client(address, set_as_default=False, timeout=patience)
    except (OSError, TimeoutError, ValueError) as error:
        raise Misconfigured(
            f"No Dask scheduler answers at {address} (compute.encode.scheduler): {error}. Start `dask scheduler` "
            "and workers, or leave the setting out to work with local processes."
        ) from error
    with client:
        if not client.scheduler_info()["workers"]:
            raise Failed(
                f"The Dask scheduler at {address} has no worker; start `dask worker {address}` first."
            )
        yield client


def do_parts(
    client: Client, work: Work, job: object, parts: Sequence[P], advance: Callable[[int], None]
) -> None:
    """Do every part on some worker; ``advance`` is told how much more is done, while it is being done.

    Raises ValueError, before anything is done, where a part is named twice; Failed with the words of the first part
    that was refused or kept dying; the others are cancelled.
    """
    if len(set(parts)) != len(parts):
        raise ValueError(
            f"{len(parts)} tasks for {len(set(parts))} parts: two would write one, and none may."
        )
    done = _Counts(len(parts), advance)
    client.subscribe_topic(_TOPIC, done.heard)
    numbered = list(enumerate(parts))
    futures = client.map(_do_part, numbered, work=work, job=job, pure=False, retries=RETRIES)
    try:
        waiting: set[Future] = set(futures)
        with client.as_current():
            while waiting:
                waiting = _wait_a_little(waiting, done)
    except (CommClosedError, FutureCancelledError, FuturesCancelledError) as error:
        raise Failed(
            "The Dask scheduler (compute.encode.scheduler) went away while the work was going on. What is finished "
            "stays finished: start the scheduler again and run the same command."
        ) from error
    finally:
        client.cancel(futures, force=True)
        client.unsubscribe_topic(_TOPIC)


def _wait_a_little(waiting: set[Future], done: "_Counts") -> set[Future]:
    settled: set[Future] = set()
    try:
        settled, waiting = cast(
            "tuple[set[Future], set[Future]]", wait(waiting, timeout=_EVERY, return_when="FIRST_COMPLETED")
        )
    except TimeoutError:
        pass
    done.tell()
    for future in settled:
        _result(future)
    return waiting


def _result(future: Future) -> None:
    try:
        outcome = future.result()
    except KilledWorker as error:
        raise Failed(
            "A part was given up: the process working on it died every time, perhaps for want of memory (each of "
            "compute.encode.workers holds its own copy of the encoder). The same command goes on where this stopped."
        ) from error
    if isinstance(outcome, Refused):
        raise Failed(outcome.text)


class _Counts:
    """How far each part is, by what workers say; a part that is done again does not count twice."""

    def __init__(self, parts: int, advance: Callable[[int], None]) -> None:
        self._reached = [0] * parts
        self._told = 0
        self._advance = advance
        self._lock = threading.Lock()

    def heard(self, event: tuple[float, dict[str, int]]) -> None:
        """A worker's word, in the client's own thread."""
        _, message = event
        with self._lock:
            number = message["part"]
            self._reached[number] = max(self._reached[number], message["reached"])

    def tell(self) -> None:
        """Pass on what is new, in the caller's thread."""
        with self._lock:
            reached = sum(self._reached)
        if reached > self._told:
            self._advance(reached - self._told)
            self._told = reached


def own_gpu(name: object) -> AbstractContextManager[object]:
    """In here ``cuda`` is a GPU of this worker's own. Those of a local cluster are numbered; others see the GPUs they
    were started with (CUDA_VISIBLE_DEVICES) and take the first."""
    if not isinstance(name, int) or not torch.cuda.is_available():
        return nullcontext()
    return torch.cuda.device(name % torch.cuda.device_count())


def _do_part(numbered: tuple[int, object], *, work: Work, job: object) -> Refused | None:
    """On a worker: one part, with words about it at most every half second and one at its end."""
    number, part = numbered
    worker = get_worker()
    reached, said = 0, time.monotonic()

    def say() -> None:
        worker.log_event(_TOPIC, {"part": number, "reached": reached, "pid": os.getpid()})

    def advance(amount: int) -> None:
        nonlocal reached, said
        reached += amount
        if time.monotonic() - said >= _EVERY:
            said = time.monotonic()
            say()

    try:
        with own_gpu(worker.name):
            work(job, part, advance)
    except (Failed, Misconfigured, CacheError) as error:
        return Refused(str(error))
    say()
    return None
