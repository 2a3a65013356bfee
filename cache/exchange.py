"""Put a new folder in the place of an old one in a single step, where the file system can."""

import ctypes
import errno
import os
from pathlib import Path

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_UNSUPPORTED = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP)


def exchange(new: Path, old: Path) -> None:
    """Swap two folders of one file system: afterwards `old` names what was new, and the other way round.

    Atomic by renameat2(2); where that is missing, two renames, between which `old` is absent for an instant.
    """
    if not _exchange_atomically(new, old):
        aside = new.with_name(f"{new.name}.aside")
        old.rename(aside)
        new.rename(old)
        aside.rename(new)


def _exchange_atomically(new: Path, old: Path) -> bool:
    library = ctypes.CDLL(None, use_errno=True)
    if not hasattr(library, "renameat2"):
        return False
    names = os.fsencode(new), os.fsencode(old)
    if library.renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in _UNSUPPORTED:
        return False
    raise OSError(code, os.strerror(code), str(new), None, str(old))
