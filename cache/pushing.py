"""Sending a finished artifact to a remote store: its files first, each one checked on the way, its manifest last."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import xxhash

from elf.cache.errors import CacheError, Damaged
from elf.cache.manifest import MANIFEST, FileRecord, short
from elf.cache.records import check_files
from elf.cache.remote import PART, Held, Remote, folder_of, part_size
from elf.cache.store import Artifact
from elf.cache.transfers import Meter, Tally, transfer


class Pushed(NamedTuple):
    """Bytes that were sent, and bytes that lay there already."""

    sent: int
    there: int


class Conflict(CacheError):
    """Somebody else's artifact of the same key but of other bytes is there; it stays."""


def push(artifact: Artifact, remote: Remote, *, meter: Meter) -> Pushed:
    """Bring an artifact to `remote`, going on from what an interrupted push left there.

    Raises Damaged, and finishes nothing there, if a file is not what the manifest says; Conflict if the key is
    there with another content.
    """
    manifest = artifact.manifest
    text = manifest.to_json().encode()
    ours = Held(manifest, folder_of(*manifest.place, text))
    held = remote.find(*manifest.place)
    if held is not None:
        _refuse_other(held, artifact, remote)
    missing = _missing(held or ours, remote)
    if held is not None and not missing:
        return Pushed(0, held.bytes())
    if held is not None and held.folder != ours.folder:
        raise Damaged(
            f"{remote}/{held.path(min(missing))} is missing or cut short though its manifest is there, and the one "
            f"here was built apart from it. {remote.cure(*manifest.place)}"
        )
    check_files(artifact.path, manifest, deep=False)
    held = ours
    todo = sum(missing.values())
    with meter(held.bytes(), held.bytes() - todo) as count:
        transfer(missing, lambda name, tally: _send(artifact, name, held.path(name), remote, tally), count)
    if lost := min(_missing(held, remote), default=None):
        raise CacheError(
            f"{remote}/{held.path(lost)} was sent and is not there, so {manifest.stage} "
            f"{short(manifest.fingerprint)} was not finished there: somebody deletes files of that folder. Push again."
        )
    if not remote.create(f"{manifest.stage}/{manifest.fingerprint}/{MANIFEST}", text):
        winner = remote.find(*manifest.place)
        if winner is not None:  # else it was deleted this moment, which is no business of ours
            _refuse_other(winner, artifact, remote)
    return Pushed(todo, held.bytes() - todo)


def _missing(held: Held, remote: Remote) -> dict[str, int]:
    """Bytes of the files that are not there. One that is was checked while it was sent: sending is all or nothing."""
    there = remote.sizes(held.folder)
    wanted = held.manifest.every_file
    return {name: record.bytes for name, record in wanted.items() if there.get(name) != record.bytes}


def _send(artifact: Artifact, name: str, target: str, remote: Remote, tally: Tally) -> None:
    path, record = artifact.path / name, artifact.manifest.every_file[name]
    if record.bytes <= PART:
        remote.put(target, b"".join(_checked(path, record, PART, tally)))
    else:
        part = part_size(record.bytes)
        remote.stream(target, _checked(path, record, part, tally), part=part)


def _checked(path: Path, record: FileRecord, part: int, tally: Tally) -> Iterator[bytes]:
    """The file in parts. Raises Damaged before it ends if it is not the one that was recorded."""
    state, size, raw = xxhash.xxh3_128(), 0, b""
    with path.open("rb") as file:
        while size < record.bytes and (raw := file.read(part)):
            state.update(raw)
            size += len(raw)
            tally.add(len(raw))
            if size < record.bytes:
                yield raw
    digest = f"xxh3:{state.hexdigest()}"
    if (size, digest) != (record.bytes, record.digest):
        raise Damaged(
            f"{path} has {size:,} bytes of digest {digest}, its manifest says {record.bytes:,} of {record.digest}. "
            "Nothing was finished at the remote. Delete the artifact or run its stage with --force to build it again."
        )
    yield raw


def _refuse_other(held: Held, artifact: Artifact, remote: Remote) -> None:
    ours, theirs = artifact.manifest, held.manifest
    if ours.content == theirs.content:
        return
    made = theirs.provenance
    raise Conflict(
        f"{remote} holds another {ours.stage} {short(ours.fingerprint)}: content {short(theirs.content)}, built on "
        f"{made.host} at {made.started}; ours is {short(ours.content)}. One key must mean the same bytes, so nothing "
        f"was sent. Find out which is right; to replace theirs, delete {remote}/{ours.stage}/{ours.fingerprint} and "
        "push again."
    )
