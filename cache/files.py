"""Files that are either whole or absent: atomic writes, fsync of trees, digests, words for a full disk."""

import errno
import os
import shutil
import uuid
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import google_crc32c
import xxhash

from elf.cache.errors import CacheError, Unwritable

if TYPE_CHECKING:
    import numpy.typing as npt

TEMPORARY = ".tmp-"
_BLOCK = 1 << 22
_ROOM, _LEAVE = "free some space or choose another store", "make it writable or choose another store"
_FULL = {
    errno.ENOSPC: ("the disk is full", _ROOM),
    errno.EDQUOT: ("the quota is used up", _ROOM),
    errno.EFBIG: ("a file may not grow that large here", "choose another store"),
    errno.EROFS: ("the file system is read-only", _LEAVE),
}
_UNWRITABLE = {
    **_FULL,
    errno.EACCES: ("permission is denied", _LEAVE),
    errno.EPERM: ("the operation is not permitted", _LEAVE),
}


@contextmanager
def writing(path: Path) -> Generator[None]:
    """Turn "no space", "read-only" and "not allowed" below this line into Unwritable about `path`."""
    try:
        yield
    except OSError as error:
        if error.errno not in _UNWRITABLE:
            raise
        raise _unwritable(path, *_UNWRITABLE[error.errno]) from error


@contextmanager
def filling(folder: Path) -> Generator[None]:
    """Like `writing`, for all that a stage does below `folder`: what reading raises too passes as it is."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        named = [Path(name) for name in (error.filename2, error.filename) if isinstance(name, str)]
        path = next((path for path in named if path.is_relative_to(folder)), folder)
        raise _unwritable(path, *_FULL[error.errno]) from error


def _unwritable(path: Path, reason: str, cure: str) -> Unwritable:
    return Unwritable(
        f"Cannot write {path}: {reason} ({free_bytes(path):,} bytes free there). Nothing was left under a "
        f"finished name; {cure}, then run the same command again."
    )


def refuse_unwritable(folder: Path) -> None:
    """Raise Unwritable where a file system or its owner lets nobody, or not us, write into `folder`, or where it would
    lie."""
    there = _nearest(folder)
    if not os.access(there, os.W_OK):
        closed = os.statvfs(there).f_flag & os.ST_RDONLY
        raise _unwritable(folder, *_UNWRITABLE[errno.EROFS if closed else errno.EACCES])


def free_bytes(path: Path) -> int:
    """Bytes an ordinary user may still write where `path` lies or would lie."""
    return shutil.disk_usage(_nearest(path)).free


def _nearest(path: Path) -> Path:
    """It, or the folder nearest to it that there is."""
    return next(parent for parent in (path, *path.parents) if parent.exists())


def temporary_beside(path: Path) -> Path:
    """A fresh name in the same folder that stray cleaning recognises."""
    return path.parent / f"{TEMPORARY}{os.getpid()}-{uuid.uuid4().hex}"


def write_atomic(path: Path, content: bytes | str) -> None:
    """Put `content` (text as UTF-8) under `path`, replacing what was there: readers see all or none."""
    temporary = temporary_beside(path)
    with writing(path):
        try:
            write_new(temporary, content)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        fsync_folder(path.parent)


def write_new(path: Path, content: bytes | str) -> None:
    """Put `content` (text as UTF-8) into a file that was not there, to the disk; a kill may leave half of it.

    Raises OSError as it comes: the caller knows what the file is for.
    """
    with path.open("xb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())


def make_folder(path: Path) -> Path:
    """`path`, made with its parents where it is missing. Raises Unwritable, also where a file stands in the way."""
    try:
        with writing(path):
            path.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise Unwritable(
            f"The folder {path} cannot be made, for it or what it lies in is a file. Name another folder, or remove "
            "that file."
        ) from error
    return path


def listed(folder: Path, *, levels: int = 1) -> list[Path]:
    """What lies so many levels below a folder, in order; nothing where there is no folder.

    Raises CacheError where a folder cannot be read: what is not seen must not count as absent.
    """
    try:
        found = sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise CacheError(
            f"{folder} cannot be read ({error.strerror}), and what lies in it must be known here. Make it readable for "
            "this user, or run the command as the user who made it."
        ) from error
    return found if levels == 1 else [path for inner in found for path in listed(inner, levels=levels - 1)]


def fsync_folder(path: Path) -> None:
    """Make the names in a folder survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_tree(root: Path) -> None:
    """Make every file and name below `root` survive a power cut."""
    with writing(root):
        for folder, _, names in os.walk(root, topdown=False):
            for name in names:
                descriptor = os.open(Path(folder, name), os.O_RDONLY | os.O_NOFOLLOW)
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
            fsync_folder(Path(folder))


def digest_file(path: Path) -> str:
    """ "xxh3:" and the xxh3_128 of the content, 32 hex digits."""
    state = xxhash.xxh3_128()
    buffer = memoryview(bytearray(_BLOCK))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            state.update(buffer[:count])
    return f"xxh3:{state.hexdigest()}"


def crc32c(raw: "bytes | npt.NDArray[Any]") -> int:
    """CRC-32C (Castagnoli) of bytes or of a C-contiguous array."""
    return google_crc32c.value(raw)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


def is_stray(name: str) -> bool:
    """Whether a file name marks something unfinished that a killed writer left."""
    return name.startswith(TEMPORARY) or name.endswith(".tmp")


def remove_strays(root: Path) -> list[Path]:
    """Delete unfinished files, and folders that were being removed, below `root`, and name them."""
    strays: list[Path] = []
    with writing(root):
        for here, folders, files in os.walk(root):
            for name in filter(is_stray, folders):
                strays.append(Path(here, name))
                shutil.rmtree(strays[-1])
            folders[:] = [name for name in folders if not is_stray(name)]
            for name in filter(is_stray, files):
                strays.append(Path(here, name))
                strays[-1].unlink(missing_ok=True)
    return strays


def remove_tree(path: Path) -> None:
    """Delete a folder and what is in it; one that is gone already is fine."""
    with writing(path):
        shutil.rmtree(path, ignore_errors=not path.exists())


def remove_at_once(path: Path) -> None:
    """Delete a folder whose files only mean something together: a kill leaves all of them under its name, or none."""
    with writing(path):
        doomed = temporary_beside(path)
        path.rename(doomed)
        shutil.rmtree(doomed)
