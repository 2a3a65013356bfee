"""The variants of a sweep, run as commands of their own, some at once.

Each is ``elf run`` under a supervisor that ends with this process, so nothing is left running whatever happens to it.
What two of them want is built by the one that comes first; the other waits for it.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

from elf.flows.sweeping import Member

GRACE = 60.0
"""Seconds in which a variant that is to stop saves what it has."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a variant's command ended: its exit code and the seconds it took."""

    member: Member
    code: int
    seconds: float


def run_members(
    members: Sequence[Member],
    command: Callable[[Member], Sequence[str]],
    *,
    jobs: int,
    log: Callable[[Member], Path | None],
    began: Callable[[Member], None],
    ended: Callable[[Ended], None],
) -> list[Ended]:
    """Run ``elf`` with the arguments that ``command`` gives for each, ``jobs`` at once, in order; a log takes what it
    says, and where there is none this process's output.

    One that fails stops no other. Where this process is told to stop, all are, and what raised that goes on once they
    are gone.
    """
    crew = _Crew()

    def work(member: Member) -> Ended:
        began(member)
        since = time.monotonic()
        code = crew.run(command(member), log(member))
        return Ended(member, code, time.monotonic() - since)

    finished: list[Ended] = []
    with ThreadPoolExecutor(jobs) as threads:
        waiting: set[Future[Ended]] = {threads.submit(work, member) for member in members}
        try:
            while waiting:
                done, waiting = wait(waiting, timeout=0.5, return_when=FIRST_COMPLETED)
                for each in done:
                    finished.append(each.result())
                    ended(finished[-1])
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            crew.stop()
            raise
    return finished


class _Crew:
    """The processes at work, so that all can be told to stop."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._working: set[subprocess.Popen[bytes]] = set()
        self._stopped = False

    def run(self, arguments: Sequence[str], log: Path | None) -> int:
        """The exit code of an ``elf`` with these arguments."""
        supervised = [sys.executable, "-m", "elf.pipeline.supervise", str(os.getpid()), str(GRACE)]
        with self._lock:
            if self._stopped:
                return 128 + signal.SIGTERM
            output = None if log is None else log.open("ab")
            try:
                # In a session of its own: Ctrl-C reaches it through us, once.
                process = subprocess.Popen(
                    [*supervised, sys.executable, "-m", "elf.flows", *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=None if output is None else subprocess.STDOUT,
                    start_new_session=True,
                )
            finally:
                if output is not None:
                    output.close()
            self._working.add(process)
        try:
            return process.wait()
        finally:
            with self._lock:
                self._working.discard(process)

    def stop(self) -> None:
        """Have all end; those that come to start do not."""
        with self._lock:
            self._stopped = True
            for process in self._working:
                process.terminate()
