"""Artifacts put into a store in one go, as old as wanted, and what lies in a store."""

import hashlib
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from elf.cache.manifest import MANIFEST, Fingerprint, Manifest, Provenance, merkle_root
from elf.cache.recording import records
from elf.cache.uses import Place

DAY = 86400.0
MADE = Provenance(None, None, ("elf", "run"), "h", "3.11", {}, "2026-01-01T00:00:00+00:00", 1.5)


def key_of(name: str) -> Fingerprint:
    """A key made of a word."""
    return Fingerprint(hashlib.sha256(name.encode()).hexdigest())


def put(
    root: Path,
    place: Place,
    *,
    inputs: Sequence[Place] = (),
    age: float = 0.0,
    files: Mapping[str, str] | None = None,
) -> Place:
    """A finished artifact that was last used ``age`` days ago."""
    folder = root / place[0] / place[1]
    for name, text in (files or {"part/a.txt": "payload", "b.txt": "more"}).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    describe(folder, place, inputs=inputs)
    set_age(root, place, age)
    return place


def describe(folder: Path, place: Place, *, inputs: Sequence[Place] = ()) -> Manifest:
    """Write the manifest of what lies in a folder."""
    found = records(folder)
    manifest = Manifest(
        stage=place[0],
        version=1,
        fingerprint=place[1],
        identity={},
        config={},
        inputs={f"{number}": key for number, (_, key) in enumerate(inputs)},
        content=merkle_root(found.files),
        files=found.files,
        aux=found.aux,
        facts={"rows": 3},
        provenance=MADE,
    )
    (folder / MANIFEST).write_text(manifest.to_json())
    return manifest


def set_age(root: Path, place: Place, days: float) -> None:
    """As if its last use were some days ago."""
    then = time.time() - days * DAY
    for path in (root / place[0] / place[1] / MANIFEST, root / ".used" / place[0] / place[1]):
        if path.exists():
            os.utime(path, (then, then))


def half_build(root: Path, place: Place, *, age: float, suffix: str = "") -> Path:
    """What a builder left that was killed some days ago."""
    folder = root / ".building" / place[0] / f"{place[1]}{suffix}"
    (folder / "c").mkdir(parents=True)
    (folder / "c" / "0").write_text("half")
    then = time.time() - age * DAY
    for path in (folder / "c" / "0", folder / "c", folder):
        os.utime(path, (then, then))
    return folder


def link(runs: Path, name: str, root: Path, place: Place) -> None:
    """A link of a run, as runs have them."""
    path = runs / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(os.path.relpath(root / place[0] / place[1], path.parent))


def finished(root: Path) -> set[Place]:
    """Stage and key of every folder that looks finished."""
    return {(path.parent.name, Fingerprint(path.name)) for path in root.glob("[a-z]*/*")}


def listing(root: Path) -> dict[str, int]:
    """Every file and folder with its time."""
    return {path.relative_to(root).as_posix(): path.lstat().st_mtime_ns for path in sorted(root.rglob("*"))}
