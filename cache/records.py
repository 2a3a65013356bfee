"""What lies in an artifact's folder, checked against the records of its manifest."""

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from elf.cache.errors import CacheError, Damaged
from elf.cache.files import digest_file
from elf.cache.manifest import MANIFEST, FileRecord, Manifest

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


def sizes(root: Path) -> dict[str, int]:
    """Bytes of every file below `root` but the manifest. Raises Damaged on links and devices."""
    found: dict[str, int] = {}
    for folder, folders, names in os.walk(root):
        for name in (*folders, *names):
            path = Path(folder, name)
            status = path.lstat()
            if stat.S_ISREG(status.st_mode):
                found[path.relative_to(root).as_posix()] = status.st_size
            elif not stat.S_ISDIR(status.st_mode):
                raise Damaged(
                    f"{path} is a link or a special file; an artifact holds plain files only. Remove it, and put what "
                    "it leads to in its place if that belongs there."
                )
    found.pop(MANIFEST, None)
    return found


def check_files(root: Path, manifest: Manifest, *, deep: bool) -> None:
    """Compare the folder with its manifest: names and sizes, and every digest when `deep`.

    Raises Damaged naming the first file that is missing, extra, of another size or changed.
    """
    wanted: Mapping[str, FileRecord] = {**manifest.files, **manifest.aux}
    _compare(root, wanted, wanted if deep else ())


def prove_files(root: Path, manifest: Manifest) -> None:
    """As `check_files`, with the digests of all payload but the shards of embedding stores: their rows are proven as
    they are read."""
    _compare(root, {**manifest.files, **manifest.aux}, manifest.files.keys() - shards_in(manifest))


def let_read(root: Path, mode: int) -> None:
    """Let everybody read the files below ``root`` whom ``mode`` lets read: safetensors writes for its owner alone."""
    for name in sizes(root):
        path = root / name
        now = stat.S_IMODE(path.stat().st_mode)
        if now | mode & 0o444 != now:
            path.chmod(now | mode & 0o444)


def stores_in(manifest: Manifest) -> list[str]:
    """Folders of an artifact that are embedding stores."""
    return sorted(
        {name.split("/")[0] for name in manifest.files if name.split("/")[1:] == ["parts", "0.json"]}
    )


def shards_in(manifest: Manifest) -> set[str]:
    """Files of an artifact that are shards of embedding stores."""
    stores = tuple(f"{store}/{array}" for store in stores_in(manifest) for array in ("c/", "tokens/c/"))
    return {name for name in manifest.files if name.startswith(stores)}


def _compare(root: Path, wanted: "Mapping[str, FileRecord]", read: "Collection[str]") -> None:
    """Names and sizes of all, digests of those to be read."""
    found = sizes(root)
    for name in sorted(wanted.keys() | found.keys()):
        fault = _fault(root / name, wanted.get(name), found.get(name), deep=name in read)
        if fault is not None:
            raise Damaged(
                f"{root / name} {fault}. Delete {root} or run its stage with --force to build it again."
            )


def _fault(path: Path, wanted: FileRecord | None, size: int | None, *, deep: bool) -> str | None:
    if wanted is None:
        return "is not named in the manifest"
    if size is None:
        return "is missing though the manifest names it"
    if size != wanted.bytes:
        return f"holds {size:,} bytes, the manifest says {wanted.bytes:,}"
    if deep and (digest := _digest(path)) != wanted.digest:
        return f"has digest {digest}, the manifest says {wanted.digest}"
    return None


def _digest(path: Path) -> str:
    try:
        return digest_file(path)
    except PermissionError as error:
        raise CacheError(
            f"{path} may not be read by this user. Let whoever made it run chmod -R a+rX on the store, or "
            "name another store."
        ) from error
