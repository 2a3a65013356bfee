"""How fast a store's file system takes and gives bytes, measured once by a small file that is gone afterwards."""

import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from elf.cache.errors import CacheError
from elf.cache.files import make_folder, temporary_beside, write_atomic
from elf.stages.machine import DiskSpeed, cache_folder

SIZE = 48 << 20
_BLOCK = 1 << 20
MEASURED = "disks.json"


def disk_speed(
    folder: Path, *, anew: bool = False, measure: Callable[[Path], DiskSpeed] | None = None
) -> DiskSpeed | None:
    """Of the file system on which ``folder`` lies or would lie; None where it cannot be written to."""
    here = _nearest(folder)
    name, known = str(mount_of(here)), _known()
    if name in known and not anew:
        return known[name]
    try:
        found = (measure or measure_disk)(here)
    except (OSError, CacheError):
        return None
    with suppress(OSError, CacheError):  # measured again next time
        make_folder(cache_folder())
        plain = {mount: asdict(speed) for mount, speed in {**known, name: found}.items()}
        write_atomic(cache_folder() / MEASURED, json.dumps(plain, indent=1) + "\n")
    return found


def known_disk(folder: Path) -> DiskSpeed | None:
    """What an earlier look found; nothing is measured."""
    return _known().get(str(mount_of(_nearest(folder))))


def measure_disk(folder: Path) -> DiskSpeed:
    """Write a file of SIZE bytes into ``folder`` through to the disk, read it back from there, remove it."""
    path, noise = temporary_beside(folder / "speed"), os.urandom(_BLOCK)
    try:
        began = time.perf_counter()
        with path.open("xb", buffering=0) as file:
            for _ in range(SIZE // _BLOCK):
                file.write(noise)
            os.fsync(file.fileno())
            written = time.perf_counter() - began
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        buffer = bytearray(_BLOCK)
        began = time.perf_counter()
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass
        read = time.perf_counter() - began
    finally:
        path.unlink(missing_ok=True)
    return DiskSpeed(SIZE / written, SIZE / read, datetime.now(UTC).date().isoformat())


def mount_of(path: Path) -> Path:
    """The folder at which the file system of ``path`` is mounted."""
    path = path.resolve()
    while path.parent != path and path.parent.stat().st_dev == path.stat().st_dev:
        path = path.parent
    return path


def _nearest(folder: Path) -> Path:
    return next(each for each in (folder, *folder.parents) if each.is_dir())


def _known() -> dict[str, DiskSpeed]:
    try:
        plain: Any = json.loads((cache_folder() / MEASURED).read_text(encoding="utf-8"))
        return {str(mount): DiskSpeed(**speed) for mount, speed in plain.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}
