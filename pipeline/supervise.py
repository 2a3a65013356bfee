"""Keeps a child and all its descendants from outliving their owner: ``python -m elf.pipeline.supervise``.

    python -m elf.pipeline.supervise OWNER_PID GRACE_SECONDS COMMAND…

Runs COMMAND. When the owner dies (even by kill -9) or this process gets SIGTERM or SIGINT, every descendant
gets SIGTERM and, after the grace period, SIGKILL. Descendants that lost their parent are adopted, so none is
missed. Ends only when all of them are gone, with COMMAND's exit code (128 + signal if a signal ended it); with 137
where one of them did not end by itself in time.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time
from types import FrameType

import psutil

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


class Stop(Exception):
    """Raised in the main thread when the children are to end."""


def main(arguments: list[str]) -> int:
    owner, grace, command = int(arguments[0]), float(arguments[1]), arguments[2:]
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, _stop)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != owner:
        return 128 + signal.SIGTERM
    child: subprocess.Popen[bytes] | None = None
    try:
        child = subprocess.Popen(command)
        code = child.wait()
        _end(grace=0.0 if code == 0 else grace)
    except Stop:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        killed = _end(grace=grace)
        code = child.wait() if child is not None else 128 + signal.SIGTERM
        code = 128 + signal.SIGKILL if killed else code
    return code if code >= 0 else 128 - code


def _stop(number: int, frame: FrameType | None) -> None:
    raise Stop


def _end(*, grace: float) -> bool:
    """SIGTERM to every descendant, SIGKILL to those still there after ``grace`` seconds; reap them all. Whether any
    was killed."""
    told: set[psutil.Process] = set()
    killed = False
    deadline = time.monotonic() + grace
    while descendants := _descendants():
        overdue = time.monotonic() >= deadline
        for process in descendants:
            if overdue or process not in told:
                told.add(process)
                killed = killed or overdue
                _signal(process, signal.SIGKILL if overdue else signal.SIGTERM)
        time.sleep(0.05)
    return killed


def _descendants() -> list[psutil.Process]:
    """Descendants that still run."""
    alive: list[psutil.Process] = []
    for process in psutil.Process().children(recursive=True):
        try:
            if process.status() != psutil.STATUS_ZOMBIE:
                alive.append(process)
        except psutil.NoSuchProcess:
            continue
    return alive


def _signal(process: psutil.Process, number: int) -> None:
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        pass


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
