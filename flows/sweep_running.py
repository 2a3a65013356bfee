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
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from elf.flows.sweeping import Member, Members
from elf.flows.told_outcomes import VARIABLE, How, read_outcomes

GRACE = 60.0
"""Seconds in which a variant that is to stop saves what it has."""
LOOK = 1.0
"""Seconds between two looks at a log."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a variant's command ended: its exit code, the seconds it took, and by key how its steps came to be there."""

    member: Member
    code: int
    seconds: float
    outcomes: Mapping[str, How] = field(default_factory=dict[str, How])


class Crew:
    """The processes at work, so that all can be told to stop."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._working: set[subprocess.Popen[bytes]] = set()
        self._stopped = False

    def run(
        self,
        member: Member,
        arguments: Sequence[str],
        *,
        log: Path | None = None,
        heard: Callable[[str], None] | None = None,
    ) -> Ended:
        """Run ``elf`` with these arguments. A log takes what it says, and where there is none this process's output;
        ``heard`` is given each line that comes into the log."""
        since, before = time.monotonic(), log.stat().st_size if log is not None and log.exists() else 0
        with TemporaryDirectory(prefix="elf-") as folder:
            told = Path(folder, "outcomes.jsonl")
            process = self._start(arguments, log, told)
            if process is None:
                return Ended(member, 128 + signal.SIGTERM, 0.0)
            try:
                if log is not None and heard is not None:
                    follow(log, before, process, heard)
                code = process.wait()
                return Ended(member, code, time.monotonic() - since, read_outcomes(told))
            finally:
                with self._lock:
                    self._working.discard(process)

    def stop(self) -> None:
        """Have all end; those that come to start do not."""
        with self._lock:
            self._stopped = True
            for process in self._working:
                process.terminate()

    def _start(
        self, arguments: Sequence[str], log: Path | None, told: Path
    ) -> subprocess.Popen[bytes] | None:
        """The process, or None where all were told to stop."""
        supervised = [sys.executable, "-m", "elf.pipeline.supervise", str(os.getpid()), str(GRACE)]
        with self._lock, nullcontext() if log is None else log.open("ab") as output:
            if self._stopped:
                return None
            # In a session of its own: Ctrl-C reaches it through us, once.
            process = subprocess.Popen(
                [*supervised, sys.executable, "-m", "elf.flows", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=None if output is None else subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, VARIABLE: str(told)},
            )
            self._working.add(process)
            return process


def run_members(
    members: Sequence[Member],
    work: Callable[[Member], Ended],
    crew: Crew,
    *,
    jobs: int,
    ended: Callable[[Ended], None],
) -> list[Ended]:
    """Do ``work`` for each member, ``jobs`` at once; ``ended`` is told of each in this thread. What comes of them is in
    the order of the members, in which they begin.

    One that fails stops no other. Where this process is told to stop, all of the crew are, and what raised that goes
    on once they are gone.
    """
    with ThreadPoolExecutor(jobs) as threads:
        begun = [threads.submit(work, member) for member in members]
        waiting: set[Future[Ended]] = set(begun)
        try:
            while waiting:
                done, waiting = wait(waiting, timeout=0.5, return_when=FIRST_COMPLETED)
                for each in done:
                    ended(each.result())
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            crew.stop()
            raise
    return [each.result() for each in begun]


def command_of(sweep: Members, member: Member, store: str | None) -> list[str]:
    """What ``elf`` is told for a member."""
    settings = [word for override in member.overrides for word in ("--set", override)]
    more = [
        *(["--store", store] if store is not None else []),
        *(["--until", sweep.until] if sweep.until else []),
    ]
    return ["run", sweep.config, *settings, *more]


def follow(log: Path, since: int, process: subprocess.Popen[bytes], heard: Callable[[str], None]) -> None:
    """Tell the lines that a process adds to a log after its first ``since`` bytes, until it has ended."""
    with log.open("rb") as lines:
        lines.seek(since)
        begun = b""
        while True:
            over = process.poll() is not None
            *whole, begun = (begun + lines.read()).split(b"\n")
            for line in whole:
                heard(line.decode(errors="replace"))
            if over:
                return
            time.sleep(LOOK)
