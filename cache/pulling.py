"""Fetching a finished artifact from a remote store: every file checked on the way, published as if built here."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import xxhash

from elf.cache.errors import Damaged, Unwritable
from elf.cache.files import (
    digest_file,
    free_bytes,
    make_folder,
    remove_tree,
    temporary_beside,
    writing,
)
from elf.cache.lease import OnWait
from elf.cache.manifest import FileRecord, Fingerprint, short
from elf.cache.pulled import note_pulled
from elf.cache.records import sizes
from elf.cache.remote import Held, Remote
from elf.cache.store import Artifact, Store
from elf.cache.transfers import Meter, Tally, transfer

PIECE: Final = 4 << 20
"""Bytes asked for at once."""


class Pulled(NamedTuple):
    """The artifact here, and the bytes that came for it now: none if it was here already."""

    artifact: Artifact
    received: int


def pull(
    store: Store,
    remote: Remote,
    stage: str,
    key: Fingerprint,
    *,
    meter: Meter,
    on_wait: OnWait | None = None,
    make_room: Callable[[int], None] | None = None,
) -> Pulled | None:
    """Bring an artifact here, going on from what an interrupted pull left; None if the remote does not hold it.

    `make_room` is told the bytes that are about to come. Raises Damaged, naming the first file that is not what the
    manifest says, and then nothing appears under a finished name; Unwritable if the disk is too full.
    """
    if (found := store.find(stage, key)) is not None:
        return Pulled(found, 0)
    held = remote.find(stage, key)
    if held is None:
        return None
    with store.receiving(stage, key, on_wait=on_wait) as receiving:
        if (found := store.find(stage, key)) is not None:
            return Pulled(found, 0)
        wanted = held.manifest.every_file
        _remove_others(receiving.path, wanted)
        todo = {
            name: record for name, record in wanted.items() if not _is_here(receiving.path / name, record)
        }
        coming = sum(record.bytes for record in todo.values())
        if make_room is not None:
            make_room(held.bytes())
        _check_room(store, held, coming)
        with meter(held.bytes(), held.bytes() - coming) as count:
            transfer(
                todo, lambda name, tally: _fetch(remote, held, name, receiving.path / name, tally), count
            )
        artifact = store.commit(receiving, held.manifest)
        note_pulled(store.root, artifact)
    return Pulled(artifact, coming)


def _remove_others(folder: Path, wanted: dict[str, FileRecord]) -> None:
    """What an earlier pull of another manifest left."""
    with writing(folder):
        for name in sizes(folder).keys() - wanted.keys():
            (folder / name).unlink()
        for here, folders, _ in os.walk(folder, topdown=False):
            for name in folders:
                if not any(Path(here, name).iterdir()):
                    remove_tree(Path(here, name))


def _is_here(path: Path, record: FileRecord) -> bool:
    """Read again in full: after a power cut a name may stand for fewer bytes than were written."""
    return path.is_file() and path.stat().st_size == record.bytes and digest_file(path) == record.digest


def _check_room(store: Store, held: Held, coming: int) -> None:
    free = free_bytes(store.root)
    if coming > free:
        owner = f"{held.manifest.stage} {short(held.manifest.fingerprint)}"
        raise Unwritable(
            f"{owner} needs {coming:,} more bytes in {store.root}, and {free:,} are free there. Nothing was fetched; "
            "free some space or choose another store, then run the same command again."
        )


def _fetch(remote: Remote, held: Held, name: str, path: Path, tally: Tally) -> None:
    """One file: into a temporary one, and under its name once it is the one that was recorded."""
    record = held.manifest.every_file[name]
    make_folder(path.parent)
    temporary = temporary_beside(path)
    try:
        with writing(path):
            digest = _stream(remote, held, name, temporary, tally)
            if digest != record.digest:
                raise Damaged(
                    f"{remote}/{held.path(name)} has digest {digest}, {_cure(remote, held, record)}"
                )
            temporary.chmod(0o444)
            temporary.rename(path)
    finally:
        temporary.unlink(missing_ok=True)


def _stream(remote: Remote, held: Held, name: str, target: Path, tally: Tally) -> str:
    """Write a remote file part by part; its digest. Raises Damaged if it is missing or shorter than it should be."""
    record, state = held.manifest.every_file[name], xxhash.xxh3_128()
    with target.open("xb") as file:
        for start in range(0, record.bytes, PIECE):
            end = min(start + PIECE, record.bytes)
            try:
                raw = remote.read(held.path(name), start, end)
            except FileNotFoundError:
                words = f"{remote}/{held.path(name)} is missing, {_cure(remote, held, record)}"
                raise Damaged(words) from None
            if len(raw) != end - start:
                words = f"{remote}/{held.path(name)} ends at byte {start + len(raw):,}, {_cure(remote, held, record)}"
                raise Damaged(words)
            state.update(raw)
            file.write(raw)
            tally.add(len(raw))
    return f"xxh3:{state.hexdigest()}"


def _cure(remote: Remote, held: Held, record: FileRecord) -> str:
    manifest = held.manifest
    return (
        f"its manifest says {record.bytes:,} bytes of {record.digest}: it was damaged there, or its manifest was. "
        f"Nothing of it was taken. {remote.cure(*manifest.place)}"
    )
