"""One builder at a time: a lease with an owner and a heartbeat, and beside it a lock that dies with it.

Two marks lie beside what is built. `<name>.lease` is a small JSON file, created whole by link(2), whose time
its owner's thread renews: it says who builds and works on any shared file system. `<name>.lock` is locked by
flock(2) on an inheritable descriptor: children that get it keep the lock until the last of them is really
gone, so a new builder never meets the orphans of a dead one. flock alone is not trusted (some file systems
grant it to everybody), nor is the lease alone: whoever publishes does so by one atomic rename.
"""

import errno
import fcntl
import json
import os
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeAlias

from elf.cache.errors import StoreBusy
from elf.cache.files import TEMPORARY, make_folder, writing
from elf.cache.redaction import redact_arguments

TTL = 60.0  # seconds without a heartbeat after which an owner on another host counts as dead
POLL = 0.2
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a lease. `start` is in clock ticks since boot: pid and start name a process for good."""

    host: str
    boot: str
    namespace: str  # of process ids: elsewhere our table of processes says nothing about theirs
    pid: int
    start: int
    token: str
    argv: tuple[str, ...]
    uses: tuple[str, ...] = ()  # what it reads meanwhile, as the owner of the lease names it

    @classmethod
    def this_process(cls, uses: Sequence[str] = ()) -> "Holder":
        pid = os.getpid()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = str(Path("/proc/self/ns/pid").readlink())
        start = _start_of(pid) or 0
        argv = redact_arguments(sys.argv)
        return cls(socket.gethostname(), boot, namespace, pid, start, uuid.uuid4().hex, argv, tuple(uses))

    def is_here(self) -> bool:
        """Whether our own process table can tell if this holder lives."""
        here = Holder.this_process()
        return self.host == here.host and (self.boot != here.boot or self.namespace == here.namespace)

    def is_dead(self) -> bool:
        """For a holder that `is_here`: gone, a zombie, of an earlier boot, or its pid is another's by now."""
        return self.boot != Holder.this_process().boot or _start_of(self.pid) != self.start

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host} ({' '.join(self.argv) or 'no command line'})"


OnWait: TypeAlias = Callable[[Holder | None], None]
"""Called at every poll while somebody else holds the lease; None: only orphans of a holder that is gone."""


class Lease:
    """A held lease. `fd` keeps the lock alive in every child it is passed to; `lost` turns true for good once
    another owner's token stands in the file, for example after this host slept longer than the TTL."""

    def __init__(self, path: Path, holder: Holder, fd: int, ttl: float) -> None:
        self.path = path
        self.holder = holder
        self.fd = fd
        self.lost = False
        self._ttl = ttl
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name=f"lease {path.name}", daemon=True)
        self._thread.start()

    def is_held(self) -> bool:
        """Whether the lease is still ours; once it is not, it never is again."""
        self.lost = self.lost or not self._is_ours()
        return not self.lost

    def check(self) -> None:
        """Raise StoreBusy if the lease is no longer ours."""
        if not self.is_held():
            now = _read(self.path)
            raise StoreBusy(
                f"The lease {self.path} of {self.holder} now belongs to {now or 'nobody'}: that happens "
                f"after {self._ttl:g} s without a heartbeat. This process publishes nothing; run the same "
                "command again and it waits for the other builder or goes on from what is there."
            )

    def release(self) -> None:
        """Give the lease back. Closing, never unlocking: children that hold the descriptor keep the lock."""
        self._stop.set()
        self._thread.join()
        if self._is_ours():
            self.path.unlink(missing_ok=True)
        os.close(self.fd)

    def _beat(self) -> None:
        while not self._stop.wait(self._ttl / 5):
            try:
                if not self._is_ours():
                    self.lost = True
                    return
                os.utime(self.path)
            except OSError:
                continue  # a hiccup of the file system; a lasting one shows as a lost lease

    def _is_ours(self) -> bool:
        holder = _read(self.path)
        return holder is not None and holder.token == self.holder.token


def acquire(
    path: Path,
    *,
    uses: Sequence[str] = (),
    on_wait: OnWait | None = None,
    ttl: float = TTL,
    poll: float = POLL,
) -> Lease:
    """The lease on `path` (any name; two files appear beside it), waiting for as long as its owner lives.

    A dead owner on this host, or one on another host whose heartbeat is older than `ttl` seconds, is replaced
    at once. With `on_wait=None` nothing is said while waiting; a callback may raise to give up. `uses` is told to
    whoever asks for the holder.
    """
    make_folder(path.parent)
    lease = path.with_name(path.name + ".lease")
    lock = path.with_name(path.name + ".lock")
    holder = Holder.this_process(uses)
    while True:
        with writing(lock):
            fd = os.open(lock, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            if _lock(fd) and (_create(lease, holder) or _take_over(lease, fd, holder, ttl)):
                os.set_inheritable(fd, True)
                _sweep(lease)
                return Lease(lease, holder, fd, ttl)
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
        if on_wait is not None:
            on_wait(_read(lease))
        time.sleep(poll)


def holder_of(path: Path, *, ttl: float = TTL) -> Holder | None:
    """The living holder of the lease on `path`, if there is one; takes nothing."""
    lease = path.with_name(path.name + ".lease")
    holder = _read(lease)
    if holder is None or (holder.is_here() and holder.is_dead()):
        return None
    try:
        age = time.time() - lease.stat().st_mtime
    except FileNotFoundError:
        return None
    return None if not holder.is_here() and age > ttl else holder


def last_holder_of(path: Path) -> Holder | None:
    """Whoever held the lease on `path` last, living or not, for as long as its file stands."""
    return _read(path.with_name(path.name + ".lease"))


def _lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    return True


def _create(lease: Path, holder: Holder) -> bool:
    """Put the file there whole, unless one stands there."""
    if lease.exists():
        return False
    temporary = lease.with_name(f"{TEMPORARY}{lease.name}-{holder.token}")
    with writing(lease):
        try:
            temporary.write_text(json.dumps(asdict(holder)))
            os.link(temporary, lease)
        except (FileExistsError, FileNotFoundError):  # another was quicker, and may have swept ours away
            return False
        finally:
            temporary.unlink(missing_ok=True)
    return True


def _sweep(lease: Path) -> None:
    """Remove what killed processes left of their attempts at this lease."""
    for stray in lease.parent.glob(f"{TEMPORARY}{lease.name}*"):
        stray.unlink(missing_ok=True)


def _take_over(lease: Path, fd: int, holder: Holder, ttl: float) -> bool:
    """Replace a dead owner's lease. Of many that try, the one whose claim stands looks again and inherits."""
    if not _is_stale(lease, fd, ttl):
        return False
    claim = lease.with_name(f"{lease.name}.heir")
    if not _create(claim, holder):
        if _is_stale(claim, fd, ttl):  # an heir died between these lines; the next poll finds the way free
            claim.unlink(missing_ok=True)
        return False
    if not _is_stale(lease, fd, ttl):
        claim.unlink()
        return False
    claim.rename(lease)
    return True


def _is_stale(lease: Path, fd: int, ttl: float) -> bool:
    owner = _read(lease)
    if owner is None:
        return False  # given back this moment
    return owner.is_dead() if owner.is_here() else _age(lease, fd) > ttl


def _age(lease: Path, fd: int) -> float:
    """Seconds since the last heartbeat by the clock of the file system, not of this host."""
    os.utime(fd)
    try:
        return os.fstat(fd).st_mtime - lease.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _read(lease: Path) -> Holder | None:
    """The owner written in the file; one cut by a power failure counts as a stranger with a heartbeat."""
    try:
        plain = json.loads(lease.read_text())
        return Holder(
            host=str(plain["host"]),
            boot=str(plain["boot"]),
            namespace=str(plain["namespace"]),
            pid=int(plain["pid"]),
            start=int(plain["start"]),
            token=str(plain["token"]),
            argv=tuple(map(str, plain["argv"])),
            uses=tuple(map(str, plain.get("uses", ()))),
        )
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        return Holder("an unknown host", "", "", 0, 0, "", ())


def _start_of(pid: int) -> int | None:
    """Start time of a living process in ticks since boot; None if it is gone or only a zombie is left."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, *rest = text[text.rindex(")") + 2 :].split()
    return None if state in "ZX" else int(rest[18])
