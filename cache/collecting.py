"""What may go: everything that no pin, no run, no living process and no recent use reaches.

An artifact stays if it is pinned, linked from a folder of runs, in use, used within the grace period or needed by an
unfinished build; so does whatever it was made from, through its manifest. Unfinished builds stay while somebody builds
them or wrote to them within the grace period; leftovers of killed processes stay only while an owner lives.
`survey` looks and changes nothing; see `elf.cache.collector` for who removes.
"""

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from elf.cache.errors import CacheError, Damaged
from elf.cache.files import listed
from elf.cache.lease import holder_of, last_holder_of
from elf.cache.manifest import Fingerprint, Manifest, check_name, short
from elf.cache.pins import read_pins
from elf.cache.roots import RunsFolder, known_folders, links_in
from elf.cache.store import Store
from elf.cache.uses import BUILDING, Place, last_use, place_of, users

TRASH = ".trash"
Kind: TypeAlias = Literal["artifact", "unfinished", "leftover"]
Why: TypeAlias = Literal["pin", "run", "use", "age", "build", "input"]


@dataclass(frozen=True, slots=True)
class Reason:
    """Why something stays: what kind of reason, and in words."""

    why: Why
    words: str


@dataclass(frozen=True, slots=True)
class Item:
    """One thing in the store. `manifest` is None for what is no artifact or a damaged one; `used` in seconds since
    the epoch; without a reason to stay (`kept`) it may go."""

    kind: Kind
    place: Place
    path: Path
    bytes: int
    used: float
    manifest: Manifest | None
    kept: tuple[Reason, ...]


@dataclass(frozen=True, slots=True)
class Survey:
    """Everything in a store, artifacts after their inputs. `damaged` are artifacts that stay, though what they were
    made from cannot be read: while there are any, nothing may be removed."""

    items: tuple[Item, ...]
    folders: tuple[RunsFolder, ...]
    damaged: tuple[Damaged, ...]

    @property
    def removable(self) -> tuple[Item, ...]:
        """What may go, in the order in which it should: nothing before what was made from it."""
        return tuple(item for item in reversed(self.items) if not item.kept)


def survey(store: Store, *, grace: float, runs: Sequence[Path] = (), now: float | None = None) -> Survey:
    """Look at all of a store; `runs` are folders of runs beside those it remembers, `grace` is in seconds.

    Raises Damaged where it cannot be known what a folder of runs reaches.
    """
    now = time.time() if now is None else now
    found, faults = _read_artifacts(store)
    folders = all_folders(store.root, runs)
    builds = list(_unfinished(store.root, grace=grace, now=now))
    reasons: dict[Place, list[Reason]] = {}
    for place, reason in _first_reasons(store, found, folders, builds, grace=grace, now=now):
        reasons.setdefault(place, []).append(reason)
    _follow_inputs(found, reasons)
    artifacts = [
        Item(
            kind="artifact",
            place=place,
            path=store.path(*place),
            bytes=_size_of(manifest) if manifest is not None else measure(store.path(*place)),
            used=last_use(store.root, place),
            manifest=manifest,
            kept=tuple(reasons.get(place, ())),
        )
        for place, manifest in _ordered(found)
    ]
    damaged = tuple(fault for place, fault in faults.items() if place in reasons)
    return Survey((*artifacts, *builds, *_trash(store.root)), folders, damaged)


def all_folders(root: Path, runs: Sequence[Path]) -> tuple[RunsFolder, ...]:
    """The folders of runs that the store remembers, and `runs`."""
    known = known_folders(root)
    paths = {each.path for each in known if each.seen}
    more = [path.absolute() for path in runs if path.is_dir() and path.absolute() not in paths]
    try:
        return (*known, *(RunsFolder(path, "", "", links_in(path), True) for path in more))
    except OSError as error:
        raise CacheError(
            f"The runs in {', '.join(map(str, more))} cannot be read ({error}), so it is not known what they reach; "
            "nothing more is removed. Run the same command again once they can."
        ) from error


def measure(path: Path) -> int:
    """Bytes of all files below a folder, or of a file."""
    return sum(status.st_size for status in _stats(path))


def newest(path: Path) -> float:
    """When something in a folder, or a file, was last written to; 0 if it is gone."""
    times = [status.st_mtime for status in _stats(path)]
    try:
        return max((*times, path.lstat().st_mtime))
    except FileNotFoundError:
        return 0.0


def _stats(path: Path) -> Iterator[os.stat_result]:
    """Of all files below a folder, or of a file; what a builder publishes or removes meanwhile is left out."""
    files = [path]
    if path.is_dir() and not path.is_symlink():
        files = [Path(here, name) for here, _, names in os.walk(path) for name in names]
    for file in files:
        with suppress(FileNotFoundError):
            yield file.lstat()


def places_in(root: Path) -> Iterator[Place]:
    """Stage and key of whatever has the name of an artifact, also of what is damaged or a link that leads elsewhere."""
    stages = [folder for folder in listed(root) if folder.name[:1].isalpha()]
    for folder in (each for stage in stages for each in listed(stage)):
        place = folder.parent.name, Fingerprint(folder.name)
        try:
            check_name(*place)
        except CacheError:
            continue  # not a name of ours
        yield place


def _read_artifacts(store: Store) -> tuple[dict[Place, Manifest | None], dict[Place, Damaged]]:
    found: dict[Place, Manifest | None] = {}
    faults: dict[Place, Damaged] = {}
    for place in places_in(store.root):
        folder = store.path(*place)
        try:
            artifact = store.find(*place)
        except Damaged as fault:
            faults[place] = fault
            if not (folder.is_symlink() or folder.parent.is_symlink()):  # that is not ours to remove
                found[place] = None
        else:
            if artifact is not None:
                found[place] = artifact.manifest
    return found, faults


def _first_reasons(
    store: Store,
    found: Mapping[Place, Manifest | None],
    folders: Iterable[RunsFolder],
    builds: Iterable[Item],
    *,
    grace: float,
    now: float,
) -> Iterator[tuple[Place, Reason]]:
    """Reasons of their own, not those that come through what was made from something."""
    for place, pin in read_pins(store.root).items():
        yield place, Reason("pin", f"pinned by {pin.by}" + (f": {pin.note}" if pin.note else ""))
    for folder in folders:
        for name, place in folder.reached.items():
            yield place, Reason("run", str(folder.path / name))
    for holder in users(store.root):
        for place in map(place_of, holder.uses):
            yield place, Reason("use", f"used by {holder}")
    for build in builds:
        holder = last_holder_of(store.root / BUILDING / build.place[0] / build.place[1])
        if build.kept and holder is not None:
            for place in map(place_of, holder.uses):
                yield place, Reason("build", f"the unfinished {_name(build.place)} needs it")
    for place in found:
        if now - last_use(store.root, place) <= grace:
            yield place, Reason("age", "used within the grace period")


def _follow_inputs(found: Mapping[Place, Manifest | None], reasons: dict[Place, list[Reason]]) -> None:
    by_key = {key: stage for stage, key in found}
    waiting = list(reasons)
    seen = set(waiting)
    while waiting:
        place = waiting.pop()
        manifest = found.get(place)
        for key in manifest.inputs.values() if manifest is not None else ():
            if key not in by_key:
                continue
            above = by_key[key], key
            reasons.setdefault(above, []).append(Reason("input", f"input of {_name(place)}"))
            if above not in seen:
                seen.add(above)
                waiting.append(above)


def _unfinished(root: Path, *, grace: float, now: float) -> Iterator[Item]:
    """Half-built folders, and what killed builders left beside them."""
    for path in listed(root / BUILDING, levels=2):
        place = path.parent.name, Fingerprint(path.name[:64])
        try:
            check_name(*place)
        except CacheError:
            continue
        rest = path.name[64:]
        unfinished = path.is_dir() and rest in ("", ".again", ".pull")
        if not unfinished and not rest.startswith(
            (".old-", ".manifest-", ".again.manifest-", ".pull.manifest-")
        ):
            continue  # leases and locks
        used, kept = newest(path), list[Reason]()
        if (holder := holder_of(root / BUILDING / place[0] / place[1])) is not None:
            kept.append(Reason("use", f"being built by {holder}"))
        if unfinished and now - used <= grace:
            kept.append(Reason("age", "written to within the grace period"))
        kind: Kind = "unfinished" if unfinished else "leftover"
        yield Item(kind, place, path, measure(path), used, None, tuple(kept))


def _trash(root: Path) -> Iterator[Item]:
    """What a collector that was killed had taken out of its place already."""
    for path in listed(root / TRASH):
        yield Item("leftover", ("", Fingerprint("")), path, measure(path), newest(path), None, ())


def _ordered(found: Mapping[Place, Manifest | None]) -> list[tuple[Place, Manifest | None]]:
    """Every artifact after its inputs."""
    by_key = {key: stage for stage, key in found}
    placed: dict[Place, Manifest | None] = {}
    for first in found:
        waiting = [first]
        while waiting:
            place = waiting[-1]
            manifest = found[place]
            inputs = manifest.inputs.values() if manifest is not None else ()
            above = [(by_key[key], key) for key in inputs if key in by_key]
            missing = [each for each in above if each not in placed and each not in waiting]
            if missing and place not in placed:
                waiting += missing[:1]
            else:
                placed[place] = manifest
                waiting.pop()
    return list(placed.items())


def _size_of(manifest: Manifest) -> int:
    return manifest.all_bytes + len(manifest.to_json())


def _name(place: Place) -> str:
    return f"{place[0]} {short(place[1])}"
