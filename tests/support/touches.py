"""Moments inside a run, told by how often its processes have touched one artifact's files so far.

``take_part`` makes a process count (Python's audit events for files below ``<store>/.building/<stage>/<key>``); the
count is shared by all processes of a run through the length of one file of fixed-width lines. At touch ``at``, and
``after`` seconds later, the victim gets its signal; at the latest just before the artifact is published, so that
no moment falls outside. Without ``at`` the touches are only recorded.
"""

import json
import os
import signal
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

PLAN = "TOUCHES"
WIDTH = 320
CALLS = ("mkdir", "rename", "link", "remove", "rmdir", "utime", "truncate", "chmod")
WRITES = frozenset({"open", "shutil.rmtree", *(f"os.{call}" for call in CALLS)})
FOLDER = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Moment:
    """When to send which signal to whom: the command itself (``top``), its process group (``group``), whoever makes
    the touch (``whoever``), or the first other process that makes that touch or a later one (``worker``)."""

    record: str
    store: str
    step: str
    """``<stage>/<key>``; only a stage's name where nothing is to happen: then all of a stage is recorded."""
    at: int | None = None
    after: float = 0.0
    victim: str = "top"
    number: int = signal.SIGKILL
    top: int = 0

    def environment(self) -> dict[str, str]:
        """What a command is started with to take part."""
        return {PLAN: json.dumps(asdict(self)), "PYTHONPATH": f"{FOLDER / 'touching'}:{FOLDER}"}


def take_part() -> None:
    """Count this process's touches, if its environment asks for it."""
    if PLAN not in os.environ:
        return
    plain = json.loads(os.environ[PLAN])
    if not plain["top"]:
        plain["top"] = os.getpid()
        os.environ[PLAN] = json.dumps(plain)
    counter = _Counter(Moment(**plain))
    sys.addaudithook(counter.heard)


def read(record: Path) -> list[str]:
    """``<seconds> <pid> <event> <path>`` of every touch so far."""
    text = record.read_text() if record.exists() else ""
    return [line.rstrip() for line in text.splitlines()]


class _Counter:
    def __init__(self, moment: Moment) -> None:
        self.moment = moment
        self.fd = os.open(moment.record, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self.below = f"{moment.store}/.building/{moment.step}"
        self.final = f"{moment.store}/{moment.step}"
        self.sent = False

    def heard(self, event: str, arguments: tuple[object, ...]) -> None:
        if event not in WRITES:
            return
        paths = [os.fspath(each) for each in arguments[:2] if isinstance(each, str | Path)]
        if not any(path.startswith(self.below) for path in paths):
            return
        line = (
            f"{time.time():.3f} {os.getpid()} {event} {' '.join(paths)}"[: WIDTH - 1].ljust(WIDTH - 1) + "\n"
        )
        os.write(self.fd, line.encode("ascii", "replace"))
        count = os.lseek(self.fd, 0, os.SEEK_CUR) // WIDTH
        if self.moment.at is None:
            return
        if self.moment.victim == "worker":
            if count >= self.moment.at and os.getpid() != self.moment.top and self.is_first():
                self.send()
        elif event == "os.rename" and paths[-1] == self.final and os.getpid() == self.moment.top:
            self.send()
        elif count == self.moment.at:
            if self.moment.after:
                timer = threading.Timer(self.moment.after, self.send)
                timer.daemon = True
                timer.start()
            else:
                self.send()

    def is_first(self) -> bool:
        """Whether no process was hit yet."""
        try:
            os.close(os.open(f"{self.moment.record}.hit", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True

    def send(self) -> None:
        if self.sent:
            return
        self.sent = True
        if self.moment.victim == "group":
            os.killpg(os.getpgid(self.moment.top), self.moment.number)
        else:
            victim = self.moment.top if self.moment.victim == "top" else os.getpid()
            os.kill(victim, self.moment.number)
