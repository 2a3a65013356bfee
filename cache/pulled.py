"""Which artifacts of a store came from a remote: copies, which may go when room is wanted.

`.pulled/<stage>/<key>.json` names the folder by its inode and the time of its manifest, so that one that was built
here later under the same key is not taken for a copy. Where no such record stands, or it fits no more, an artifact
counts as built here.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from elf.cache.errors import CacheError, Damaged
from elf.cache.files import make_folder, write_atomic
from elf.cache.manifest import MANIFEST, Fingerprint
from elf.cache.store import Artifact, Store
from elf.cache.uses import Place

PULLED = ".pulled"


@dataclass(frozen=True, slots=True)
class Copy:
    """A pulled artifact with its size in bytes and the time of its last use."""

    artifact: Artifact
    bytes: int
    used: float

    @property
    def place(self) -> Place:
        return self.artifact.manifest.place


def note_pulled(root: Path, artifact: Artifact) -> None:
    """Remember a copy, once it is finished: if this is lost, the artifact is merely kept for ever."""
    path = _path(root, artifact.manifest.place)
    make_folder(path.parent)
    write_atomic(path, json.dumps(_mark(artifact.path)))


def forget_pulled(root: Path, place: Place) -> None:
    """Drop the record of a copy that is gone."""
    _path(root, place).unlink(missing_ok=True)


def is_pulled(root: Path, artifact: Artifact) -> bool:
    """Whether the artifact is a copy that came from a remote."""
    try:
        noted = json.loads(_path(root, artifact.manifest.place).read_bytes())
        return noted == _mark(artifact.path)
    except (OSError, ValueError):
        return False


def copies(store: Store) -> Iterator[Copy]:
    """Every copy of the store."""
    for path in sorted(store.root.glob(f"{PULLED}/*/*.json")):
        stage, key = path.parent.name, Fingerprint(path.stem)
        try:
            artifact = store.find(stage, key)
        except (CacheError, Damaged):
            continue
        if artifact is not None and is_pulled(store.root, artifact):
            yield Copy(artifact, artifact.manifest.all_bytes, store.last_use(stage, key))


def _mark(path: Path) -> dict[str, int]:
    return {"inode": path.stat().st_ino, "finished": (path / MANIFEST).stat().st_mtime_ns}


def _path(root: Path, place: Place) -> Path:
    return root / PULLED / place[0] / f"{place[1]}.json"
