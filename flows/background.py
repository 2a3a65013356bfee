"""Processes that go on after the command that started them, and how they are found and ended again.

A process is known by its id, its start time and the boot of the machine, so that a reused id is never mistaken
for it.
"""

import os
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

_STATE, _START = 0, 19  # fields of /proc/PID/stat after the name, which may hold anything


@dataclass(frozen=True, slots=True)
class Background:
    """A process for good: ``start`` is in clock ticks since the boot named ``boot``."""

    pid: int
    start: int
    boot: str

    @classmethod
    def of(cls, pid: int) -> "Background | None":
        """The process that has this id now; None if there is none or it is a zombie."""
        start = _start_of(pid)
        return None if start is None else cls(pid, start, _boot())

    def is_alive(self) -> bool:
        return self.boot == _boot() and _start_of(self.pid) == self.start

    def signal(self, number: int) -> None:
        """Send a signal, unless the process is gone."""
        if self.is_alive():
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                pass

    def listens_on(self, port: int) -> bool:
        """Whether it is this process that accepts connections there."""
        try:
            places = psutil.Process(self.pid).net_connections(kind="tcp") if self.is_alive() else []
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            return False
        return any(place.status == psutil.CONN_LISTEN and place.laddr.port == port for place in places)


def launch(command: Sequence[str], *, folder: Path, environment: Mapping[str, str], log: Path) -> Background:
    """Start ``command`` in a session of its own, its output in ``log``, which only we may read.

    The log of the time before is kept beside it, as ``<name>.1``. Scripts start what stands before ``&`` with SIGINT
    ignored, and that would be inherited: a Prefect worker is then deaf to SIGTERM too. So it is not.
    """
    if log.exists():
        log.replace(log.with_name(f"{log.name}.1"))
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
    try:
        with _sigint_heeded():
            process = subprocess.Popen(
                list(command),
                cwd=folder,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
    finally:
        os.close(output)
    process.returncode = 0  # it is to outlive us; Python would warn of a child that nobody waited for
    return Background.of(process.pid) or Background(process.pid, 0, _boot())


def processes_with(variables: Mapping[str, str], *, of: str) -> dict[Background, str]:
    """Processes whose environment holds all of ``variables``, and ``of``: with the value of that one."""
    found: dict[Background, str] = {}
    for process in psutil.process_iter():
        try:
            theirs = process.environ()
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
        if of in theirs and all(theirs.get(name) == value for name, value in variables.items()):
            known = Background.of(process.pid)
            if known is not None:
                found[known] = theirs[of]
    return found


def wait_gone(processes: Iterable[Background], seconds: float) -> set[Background]:
    """Wait until all are gone, at most ``seconds``; those that are not."""
    deadline = time.monotonic() + seconds
    alive = {process for process in processes if process.is_alive()}
    while alive and time.monotonic() < deadline:
        time.sleep(0.05)
        alive = {process for process in alive if process.is_alive()}
    return alive


def end(processes: Iterable[Background], *, grace: float) -> None:
    """SIGTERM to each, SIGKILL to those that are there after ``grace`` seconds."""
    told = set(processes)
    for process in told:
        process.signal(signal.SIGTERM)
    stubborn = wait_gone(told, grace)
    for process in stubborn:
        process.signal(signal.SIGKILL)
    wait_gone(stubborn, 10)


@contextmanager
def _sigint_heeded() -> Iterator[None]:
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _start_of(pid: int) -> int | None:
    """Start time of a process in clock ticks since boot; None if it is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[_STATE] in (b"Z", b"X") else int(fields[_START])
