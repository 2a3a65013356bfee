"""When an artifact was last used, and who uses it now: what keeps a collector from taking it away.

* `.used/<stage>/<key>` is an empty file whose time is the last use; where there is none, it is the time at which
  the artifact was finished. Nothing inside an artifact is touched, and a store that cannot be written is left alone.
* `.holds/` has a lease per process that reads artifacts without building from them; builders name theirs in the
  lease of what they build.
* `.collecting/doomed` names the artifact that a collector is about to judge. A reader writes its lease first and looks
  there second, the collector the other way round, so that one of the two always sees the other.
"""

import os
import time
import uuid
from collections.abc import Collection, Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeAlias

from elf.cache.errors import Unwritable
from elf.cache.files import TEMPORARY, listed
from elf.cache.lease import POLL, TTL, Holder, acquire, holder_of
from elf.cache.manifest import MANIFEST, Fingerprint

Place: TypeAlias = "tuple[str, Fingerprint]"
"""Stage and key."""

USED = ".used"
HOLDS = ".holds"
BUILDING = ".building"
COLLECTING = ".collecting"
COLLECTOR = "collector"
DOOMED = "doomed"


def mark(place: Place) -> str:
    """`<stage>/<key>`, as leases name it."""
    return f"{place[0]}/{place[1]}"


def place_of(text: str) -> Place:
    """The way back from `mark`."""
    stage, _, key = text.partition("/")
    return stage, Fingerprint(key)


@contextmanager
def holding(root: Path, places: Collection[Place], *, ttl: float = TTL) -> Generator[None]:
    """Use artifacts, finished or still to be, for as long as this is open: nobody collects them.

    Waits while a collector is busy with one of them: look whether it is there afterwards. A store that may not be
    written is only read; what others do to it meanwhile cannot be helped.
    """
    name = root / HOLDS / uuid.uuid4().hex
    try:
        lease = acquire(name, uses=[mark(place) for place in places], ttl=ttl)
    except Unwritable:
        yield
        return
    try:
        await_collector(root, places, ttl=ttl)
        note_uses(root, places)
        try:
            yield
        finally:
            note_uses(root, places)
    finally:
        lease.release()
        name.with_name(f"{name.name}.lock").unlink(missing_ok=True)


def users(root: Path, *, ttl: float = TTL) -> Iterator[Holder]:
    """Whoever builds or reads in the store at the moment; `uses` says what."""
    for path in (*listed(root / BUILDING, levels=2), *listed(root / HOLDS)):
        if path.suffix == ".lease":
            holder = holder_of(path.with_suffix(""), ttl=ttl)
            if holder is not None:
                yield holder


def note_uses(root: Path, places: Collection[Place]) -> None:
    """Say that the artifacts among `places` that exist are used now; where that cannot be written, it is not."""
    for stage, key in places:
        if (root / stage / key / MANIFEST).exists():
            with suppress(OSError):
                _touch(root / USED / stage / key)


def last_use(root: Path, place: Place) -> float:
    """Seconds since the epoch, by the file system's clock. An artifact without a manifest counts from its folder."""
    stage, key = place
    folder = root / stage / key
    finished = _time(folder / MANIFEST) or _time(folder) or 0.0
    return max(finished, _time(root / USED / stage / key) or 0.0)


def forget_use(root: Path, place: Place) -> None:
    """Drop the record of an artifact that is gone."""
    (root / USED / place[0] / place[1]).unlink(missing_ok=True)


def await_collector(root: Path, places: Collection[Place], *, ttl: float = TTL) -> None:
    """Return once no living collector judges one of `places`."""
    marks = {mark(place) for place in places}
    doomed = root / COLLECTING / DOOMED
    while True:
        try:
            judged = doomed.read_text()
        except FileNotFoundError:
            return
        if judged not in marks or holder_of(root / COLLECTING / COLLECTOR, ttl=ttl) is None:
            return
        time.sleep(POLL / 10)


def _touch(path: Path) -> None:
    try:
        os.utime(path)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    except PermissionError:  # another user's file in a folder that is ours too
        fresh = path.with_name(f"{TEMPORARY}{uuid.uuid4().hex}")
        fresh.touch()
        fresh.replace(path)


def _time(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except (FileNotFoundError, NotADirectoryError):
        return None
