"""Pins: what a person wants kept. `.pins/<stage>/<key>.json` in the store, so that every host sees them."""

import getpass
import json
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from elf.cache.errors import CacheError
from elf.cache.files import fsync_folder, listed, make_folder, write_atomic, writing
from elf.cache.manifest import Fingerprint, check_name
from elf.cache.uses import Place

PINS = ".pins"


@dataclass(frozen=True, slots=True)
class Pin:
    """Why an artifact is kept, by whom and since when (UTC)."""

    note: str
    by: str
    when: str


def pin(root: Path, place: Place, note: str = "") -> Pin:
    """Keep an artifact until it is unpinned; a pin that stands already gets the new note."""
    made = Pin(note, f"{_user()}@{socket.gethostname()}", datetime.now(UTC).isoformat(timespec="seconds"))
    path = _path(root, place)
    make_folder(path.parent)
    write_atomic(path, json.dumps(asdict(made)) + "\n")
    return made


def unpin(root: Path, place: Place) -> bool:
    """Whether there was a pin to take away."""
    path = _path(root, place)
    try:
        with writing(path):
            path.unlink()
    except FileNotFoundError:
        return False
    fsync_folder(path.parent)
    return True


def is_pinned(root: Path, place: Place) -> bool:
    """Whether the artifact is pinned."""
    return _path(root, place).exists()


def read_pins(root: Path) -> Mapping[Place, Pin]:
    """All pins by stage and key. It is the file's name that pins: one that cannot be read still does."""
    found: dict[Place, Pin] = {}
    for path in listed(root / PINS, levels=2):
        if path.suffix != ".json":
            continue  # a file that somebody is just writing
        place = path.parent.name, Fingerprint(path.stem)
        try:
            check_name(*place)
        except CacheError:
            continue
        found[place] = _read(path)
    return found


def _read(path: Path) -> Pin:
    try:
        plain = json.loads(path.read_bytes())
        return Pin(str(plain["note"]), str(plain["by"]), str(plain["when"]))
    except (OSError, ValueError, KeyError, TypeError):
        return Pin("(not readable)", "", "")


def _path(root: Path, place: Place) -> Path:
    check_name(*place)
    stage, key = place
    return root / PINS / stage / f"{key}.json"


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container's user without a name
        return "somebody"
