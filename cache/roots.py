"""Which folders of runs lead into a store: what their links reach must be kept, wherever the folders lie.

`.roots/<id>.json` in the store remembers a folder: its path, its host, and what it reached when it last changed. The
id is written into the folder too (`.runs-id`), so that a path of the same name on another host, or another disk that is
mounted there now, is not taken for it. A folder that cannot be seen from here reaches what it reached last.
"""

import json
import os
import socket
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from elf.cache.errors import CacheError, Damaged, Unwritable
from elf.cache.files import listed, make_folder, write_atomic, write_new, writing
from elf.cache.manifest import Fingerprint, check_name
from elf.cache.uses import Place, mark, place_of

ROOTS = ".roots"
RUNS_ID = ".runs-id"


@dataclass(frozen=True, slots=True)
class RunsFolder:
    """`reached` by the link's name, `<experiment>/<step>`. `seen` says that the links were read, at `path`, and not
    remembered."""

    path: Path
    host: str
    when: str
    reached: Mapping[str, Place]
    seen: bool
    record: Path | None = field(default=None, compare=False)


def links_in(folder: Path) -> dict[str, Place]:
    """What the links below a folder lead to, there or not. Raises OSError where it cannot be read.

    Only the last two parts of a target count: a store has other paths on other hosts, a key is the same everywhere.
    """

    def refuse(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError) or error.filename == str(folder):
            raise error

    found: dict[str, Place] = {}
    for here, folders, files in os.walk(folder, onerror=refuse):
        # What has a dot is being made; what vanishes under our eyes was replaced or taken away.
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in sorted((*folders, *files)):
            path = Path(here, name)
            if name.startswith(".") or not path.is_symlink():
                continue
            with suppress(CacheError, FileNotFoundError):
                *_, stage, key = ("", "", *Path(os.path.normpath(path.parent / path.readlink())).parts)
                check_name(stage, key)
                found[path.relative_to(folder).as_posix()] = stage, Fingerprint(key)
    return found


def remember(root: Path, folder: Path, adding: Mapping[str, Place]) -> None:
    """Have the store know a folder of runs, before the links `adding` are made in it.

    In a store that may not be written nothing is remembered.
    """
    folder = folder.absolute()
    reached = {**(links_in(folder) if folder.is_dir() else {}), **adding}
    try:
        record = root / ROOTS / f"{_identify(root, folder)}.json"
        plain = {
            "path": str(folder),
            "relative": os.path.relpath(folder, root),
            "host": socket.gethostname(),
            "reached": {name: mark(place) for name, place in sorted(reached.items())},
        }
        if _plain(record) != plain:
            make_folder(record.parent)
            write_atomic(record, json.dumps({**plain, "when": _now()}, indent=1) + "\n")
    except Unwritable:
        return


def known_folders(root: Path) -> list[RunsFolder]:
    """Every folder of runs that the store remembers, seen or not. Raises Damaged for a record that cannot be read."""
    return [_look(root, path) for path in listed(root / ROOTS) if path.suffix == ".json"]


def forget(root: Path, folder: Path) -> int:
    """Forget a folder of runs that cannot be seen, and thus what only it reaches; how many records were of it."""
    gone = [
        each.record
        for each in known_folders(root)
        if each.path == folder.absolute() and not each.seen and each.record is not None
    ]
    for record in gone:
        with writing(record):
            record.unlink(missing_ok=True)
    return len(gone)


def _identify(root: Path, folder: Path) -> str:
    """The id of a folder, made where it has none or where it is a copy of one that still stands elsewhere."""
    found = _id_of(folder)
    if found:
        before = _plain(root / ROOTS / f"{found}.json")
        other = Path(str(before["path"])) if before else folder
        if other == folder or _id_of(other) != found or other.samefile(folder):
            return found
    made = uuid.uuid4().hex
    make_folder(folder)
    if not found:
        try:
            with writing(folder / RUNS_ID):
                write_new(folder / RUNS_ID, made + "\n")
            return made
        except FileExistsError:  # another run was first, or was killed before it had written
            if found := _id_of(folder):
                return found
    write_atomic(folder / RUNS_ID, made + "\n")
    return made


def _id_of(folder: Path) -> str:
    try:
        text = (folder / RUNS_ID).read_text().strip()
    except OSError:
        return ""
    return text if text.isalnum() and text.isascii() else ""


def _look(root: Path, record: Path) -> RunsFolder:
    try:
        plain = json.loads(record.read_bytes())
        path, host, when = Path(plain["path"]), str(plain["host"]), str(plain["when"])
        reached = {str(name): _place(place) for name, place in plain["reached"].items()}
        relative = str(plain["relative"])
    except (ValueError, KeyError, TypeError, AttributeError, CacheError) as error:
        raise Damaged(
            f"{record} is damaged ({error}): it said what a folder of runs reaches, and nothing is collected while "
            "that is not known. Run any experiment in that folder again, or delete the file if the folder is gone."
        ) from error
    for place in (path, Path(os.path.normpath(root / relative))):
        if _id_of(place) == record.stem:
            with suppress(OSError):
                return RunsFolder(place, host, when, links_in(place), True, record)
    return RunsFolder(path, host, when, reached, False, record)


def _plain(record: Path) -> dict[str, object] | None:
    """What a record says but its time; None where there is none that can be read."""
    try:
        plain: dict[str, object] = json.loads(record.read_bytes())
        del plain["when"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return plain


def _place(text: str) -> Place:
    place = place_of(text)
    check_name(*place)
    return place


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
