"""Removes from a store what nothing reaches, one thing at a time, so that it may be killed at any moment.

One collector works on a store at a time. It builds nothing and waits for nobody: it takes the builder's lease of what
it is about to remove, names that in `.collecting/doomed`, looks once more for a reason to keep it, renames it into
`.trash/` and only then deletes files. What lies in `.trash/` is nobody's; the next collector sweeps it first.
"""

import os
import uuid
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from elf.cache.collecting import TRASH, Item, Survey, all_folders, newest, survey
from elf.cache.errors import StoreBusy
from elf.cache.files import TEMPORARY, fsync_folder, make_folder, remove_tree, writing
from elf.cache.lease import TTL, Holder, Lease, OnWait, acquire, holder_of
from elf.cache.manifest import short
from elf.cache.pins import PINS, is_pinned
from elf.cache.roots import ROOTS
from elf.cache.store import Store
from elf.cache.uses import (
    BUILDING,
    COLLECTING,
    COLLECTOR,
    DOOMED,
    HOLDS,
    USED,
    Place,
    forget_use,
    last_use,
    mark,
    users,
)


@contextmanager
def collecting(store: Store, *, grace: float, runs: Sequence[Path] = ()) -> Generator["Collector"]:
    """The one collector of a store, with its survey. `grace` is in seconds; `runs` as for `survey`.

    Raises StoreBusy if another one works, Damaged while something that stays cannot be read, Unwritable.
    """

    def refuse(holder: Holder | None) -> None:
        raise StoreBusy(
            f"{store.root} is being collected by {holder or 'another process'}; run this again later."
        )

    with collecting_alone(store.root, on_wait=refuse) as lease:
        now = _clock(lease)
        seen = survey(store, grace=grace, runs=runs, now=now)
        if seen.damaged:
            raise seen.damaged[0]
        _sweep(store.root, now=now)
        yield Collector(store, lease, seen, runs)


@contextmanager
def collecting_alone(root: Path, *, on_wait: OnWait | None = None) -> Generator[Lease]:
    """The lease of which a store has one: who holds it may take things away. Waits for whoever has it."""
    lease = acquire(root / COLLECTING / COLLECTOR, on_wait=on_wait)
    try:
        yield lease
    finally:
        (root / COLLECTING / DOOMED).unlink(missing_ok=True)
        lease.release()


class Collector:
    """Removes what its survey found removable; get it from `collecting`."""

    def __init__(self, store: Store, lease: Lease, seen: Survey, runs: Sequence[Path]) -> None:
        self.survey = seen
        self._root, self._lease, self._runs = store.root, lease, runs
        self._spared: set[str] = set()

    def remove(self, item: Item) -> str | None:
        """Remove one thing, or say in words why it stays after all. Take them in the survey's order."""
        if item.path.parent.name == TRASH:
            _remove(item.path)
            return None
        why = self._take_away(item)
        if why is not None and item.kind == "artifact":
            if item.manifest is None:
                raise StoreBusy(
                    f"{item.path} is wanted again ({why}) and is damaged, so that it cannot be known what it was made "
                    "from; nothing more is removed. Build it again with --force."
                )
            self._spared.update(item.manifest.inputs.values())
        return why

    def _take_away(self, item: Item) -> str | None:
        why = take_away(self._root, self._lease, item.path, item.place, lambda: self._reason(item))
        if why is None and item.kind == "artifact":
            forget_use(self._root, item.place)
        return why

    def _reason(self, item: Item) -> str | None:
        """What has come up since the survey. Whoever uses what was made from it noted the use of that, or of this."""
        if item.kind == "leftover":
            return None
        if item.kind == "unfinished":
            return "written to just now" if newest(item.path) > item.used else None
        if item.place[1] in self._spared:
            return "an input of what stays"
        if is_pinned(self._root, item.place):
            return "pinned just now"
        if last_use(self._root, item.place) > item.used:
            return "used just now"
        if any(mark(item.place) in holder.uses for holder in users(self._root)):
            return "in use"
        if any(item.place in each.reached.values() for each in all_folders(self._root, self._runs)):
            return "linked from a run just now"
        return None


def take_away(
    root: Path, collector: Lease, path: Path, place: Place, reason: Callable[[], str | None]
) -> str | None:
    """Remove what lies at `path` and belongs to `place`, or say in words why it stays after all.

    `reason` is asked when no reader can begin to read it unseen any more. The caller holds the collector's lease.
    """
    stage, key = place
    try:
        lease = acquire(root / BUILDING / stage / key, on_wait=_refuse)
    except StoreBusy as busy:
        return str(busy)
    doomed = root / COLLECTING / DOOMED
    try:
        _announce(doomed, place)
        why = reason()
        if why is not None:
            return why
        collector.check()
        lease.check()
        trash = make_folder(root / TRASH) / f"{stage}-{short(key)}-{uuid.uuid4().hex}"
        with writing(path):
            try:
                path.rename(trash)
            except FileNotFoundError:
                return "gone already"
        fsync_folder(path.parent)
    finally:
        doomed.unlink(missing_ok=True)
        lease.release()
    _remove(trash)
    return None


def _refuse(holder: Holder | None) -> None:
    raise StoreBusy(f"being built by {holder or 'children of a process that is gone'}")


def _announce(doomed: Path, place: Place) -> None:
    """Let those who begin to read from here on see what is being judged."""
    draft = doomed.with_name(f"{TEMPORARY}{uuid.uuid4().hex}")
    with writing(doomed):
        draft.write_text(mark(place))
        draft.replace(doomed)


def _clock(lease: Lease) -> float:
    """Now, as the file system says; hosts that share it may disagree."""
    os.utime(lease.fd)
    return os.fstat(lease.fd).st_mtime


def _sweep(root: Path, *, now: float) -> None:
    """Remove the small files that killed readers and writers left, and the times of what is gone."""
    for path in root.glob(f"{HOLDS}/*"):
        if holder_of(path.with_suffix("")) is None:
            _unlink_old(path, now)
    for path in root.glob(f"{BUILDING}/*/*.lease"):
        place = path.with_suffix("")
        if holder_of(place) is None and not place.exists():
            with suppress(StoreBusy):
                acquire(place, on_wait=_refuse).release()
    for folder in (f"{PINS}/*", ROOTS, f"{USED}/*", COLLECTING):
        for path in root.glob(f"{folder}/{TEMPORARY}*"):
            _unlink_old(path, now)
    for path in root.glob(f"{USED}/*/*"):
        if not (root / path.parent.name / path.name).exists():
            _unlink_old(path, now)


def _unlink_old(path: Path, now: float) -> None:
    """Nobody needs longer than a minute between two of the steps that such a file stands for."""
    with suppress(FileNotFoundError):
        if now - path.stat().st_mtime > TTL:
            path.unlink()


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        remove_tree(path)
    else:
        path.unlink(missing_ok=True)
