"""Whether an artifact is what its manifest says: file by file, shard by shard, row by row. Nothing is changed.

`verify_artifact` reads everything. `verify_sample` reads names and sizes, every small file of an embedding store, and
some of its rows: an hour's work in a second, which finds what is wrong everywhere and misses what is wrong in a few.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from elf.cache.errors import Damaged
from elf.cache.files import digest_file
from elf.cache.manifest import FileRecord
from elf.cache.parts import read_record
from elf.cache.records import shards_in, sizes, stores_in
from elf.cache.rows import RaggedRows, Rows, open_rows, random_rows
from elf.cache.store import Artifact

SHOWN = 5
"""Rows of one shard that are named before the others are only counted."""


@dataclass(frozen=True, slots=True)
class Verified:
    """What was read and what is wrong with it, one sentence each."""

    bytes: int
    rows: int
    faults: tuple[str, ...]


def verify_artifact(artifact: Artifact, advance: Callable[[int], None] = lambda size: None) -> Verified:
    """Every byte against the manifest, every shard against its record, every row against its CRC-32C.

    `advance` is told of the bytes of each file that was read.
    """
    wanted = artifact.manifest.every_file
    faults = list(_misfits(artifact.path, wanted))
    for name, record in wanted.items():
        faults += _changed(artifact.path / name, record)
        advance(record.bytes)
    rows = 0
    for view in stores_in(artifact.manifest):
        count, found = _verify_rows(artifact, view, lambda rows: range(len(rows)))
        rows, faults = rows + count, faults + found
    return Verified(artifact.manifest.all_bytes, rows, tuple(faults))


def verify_sample(artifact: Artifact, *, rows: int, seed: int) -> Verified:
    """Names and sizes of all files, and `rows` random rows of each embedding store against their CRC-32C."""
    wanted = artifact.manifest.every_file
    faults = list(_misfits(artifact.path, wanted))
    views = stores_in(artifact.manifest)
    read = total = 0
    shards = shards_in(artifact.manifest)
    for name, record in artifact.manifest.files.items():
        if name.split("/")[0] in views and name not in shards:  # by which rows are judged
            faults += _changed(artifact.path / name, record)
            read += record.bytes

    def choose(source: Rows | RaggedRows) -> Iterable[int]:
        return random_rows(len(source), rows, seed=seed).tolist()

    for view in views:
        count, found = _verify_rows(artifact, view, choose)
        total, faults = total + count, faults + found
    return Verified(read, total, tuple(faults))


def _misfits(root: Path, wanted: dict[str, FileRecord]) -> Iterator[str]:
    """Files that are missing, too many or of another size."""
    try:
        found = sizes(root)
    except Damaged as fault:
        yield str(fault)
        return
    for name in sorted(wanted.keys() | found.keys()):
        if name not in wanted:
            yield f"{root / name} is not named in the manifest."
        elif name not in found:
            yield f"{root / name} is missing though the manifest names it."
        elif found[name] != wanted[name].bytes:
            yield f"{root / name} holds {found[name]:,} bytes, the manifest says {wanted[name].bytes:,}."


def _changed(path: Path, record: FileRecord) -> Iterator[str]:
    """A file of the right size with other bytes, or one that cannot be read."""
    try:
        if path.is_file() and path.stat().st_size == record.bytes:
            digest = digest_file(path)
            if digest != record.digest:
                yield f"{path} has digest {digest}, the manifest says {record.digest}."
    except OSError as error:
        yield f"{path} cannot be read: {error.strerror}."


def _verify_rows(
    artifact: Artifact, name: str, choose: Callable[[Rows | RaggedRows], Iterable[int]]
) -> tuple[int, list[str]]:
    """How many rows of a store were compared, and what is wrong with them or with their shards' records."""
    try:
        return _compare_rows(artifact, name, choose)
    except Damaged as fault:
        return 0, [str(fault)]
    except OSError as error:
        return 0, [f"{error.filename or artifact.path / name} cannot be read: {error.strerror}."]


def _compare_rows(
    artifact: Artifact, name: str, choose: Callable[[Rows | RaggedRows], Iterable[int]]
) -> tuple[int, list[str]]:
    source = open_rows(artifact.path / name)
    faults: list[str] = []
    layout, count = source.layout, 0
    bad: dict[int, list[int]] = {}
    broken: set[int] = set()
    for shard in range(layout.shards):
        path = f"{name}/{layout.shard_name(shard)}"
        try:
            record = read_record(source.folder, layout, shard)
        except Damaged as fault:
            faults.append(str(fault))
            broken.add(shard)
            continue
        said = artifact.manifest.files.get(path)
        if said is None or said.digest != record.digest:
            faults.append(
                f"The record of shard {shard} of {source.folder} is not that of the file in the manifest."
            )
    for row in choose(source):
        shard = int(layout.locate(np.array([row]))[0][0])
        if shard in broken:
            continue
        count += 1
        try:
            source.proven(row)
        except Damaged:
            bad.setdefault(shard, []).append(row)
    for shard, rows in bad.items():
        more = f" and {len(rows) - SHOWN:,} more" if len(rows) > SHOWN else ""
        named = ", ".join(map(str, rows[:SHOWN]))
        faults.append(
            f"Shard {shard} of {source.folder} holds rows that have changed since they were written: {named}{more}."
        )
    return count, faults
