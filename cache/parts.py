"""What is known of a finished shard: a JSON record, the CRC-32C of its rows, and the look of its file.

`parts/<i>.json` is written after everything else of shard i; without it the shard does not exist.
"""

import json
import os
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy as np
import numpy.typing as npt

from elf.cache.errors import AGAIN, Damaged
from elf.cache.files import make_folder, write_atomic
from elf.cache.layout import Layout, footer, used_slots


@dataclass(frozen=True, slots=True, eq=False)
class ShardRecord:
    """One finished shard: its rows, the file's size and digest, and the CRC-32C of each row."""

    rows: int
    bytes: int
    digest: str
    crc: npt.NDArray[np.uint32]


def read_record(folder: Path, layout: Layout, shard: int) -> ShardRecord:
    """The record of a finished shard. Raises Damaged if it is missing or not of this layout."""
    path = record_path(folder, shard)
    try:
        plain = json.loads(path.read_bytes())
        with crc_path(folder, shard).open("rb") as file:
            crc = np.load(file, allow_pickle=False)
        record = ShardRecord(int(plain["rows"]), int(plain["bytes"]), str(plain["digest"]), crc)
    except (FileNotFoundError, ValueError, KeyError, TypeError, EOFError) as error:
        raise Damaged(
            f"Shard {shard} of {folder} has no readable record {path} ({error}). {AGAIN}"
        ) from error
    rows = len(layout.rows_of(shard))
    if (record.rows, crc.shape, crc.dtype) != (rows, (rows,), np.dtype(np.uint32)):
        raise Damaged(f"The record {path} is of {record.rows} rows, shard {shard} has {rows}. {AGAIN}")
    return record


def shard_fault(folder: Path, layout: Layout, shard: int) -> str | None:
    """What is wrong with a shard's size or index, if anything; reads the index only."""
    used = used_slots(layout, shard)
    end = footer(slots=layout.slots, used=used, chunk_bytes=layout.chunk_bytes)
    head = used * layout.chunk_bytes
    path = folder / layout.shard_name(shard)
    try:
        with path.open("rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            if size != head + len(end):
                return f"{path} holds {size:,} bytes instead of {head + len(end):,}"
            if os.pread(file.fileno(), len(end), head) != end:
                return f"{path} does not end in the index of rows in order"
    except FileNotFoundError:
        return f"{path} is missing"
    return None


def write_record(folder: Path, shard: int, record: ShardRecord) -> None:
    """Call a shard finished, once its file is on the disk."""
    sidecar = BytesIO()
    np.save(sidecar, record.crc, allow_pickle=False)
    plain = {"rows": record.rows, "bytes": record.bytes, "digest": record.digest}
    for path, content in (
        (crc_path(folder, shard), sidecar.getvalue()),
        (record_path(folder, shard), json.dumps(plain).encode()),
    ):
        make_folder(path.parent)
        write_atomic(path, content)


def record_path(folder: Path, shard: int) -> Path:
    """Where the record of a shard lies; without it the shard is not finished."""
    return folder / "parts" / f"{shard}.json"


def crc_path(folder: Path, shard: int) -> Path:
    return folder / "crc" / f"{shard}.npy"


def check_document(path: Path, content: bytes) -> None:
    """Raise Damaged unless the file says exactly this."""
    try:
        found = path.read_bytes()
    except FileNotFoundError:
        raise Damaged(
            f"{path} is missing, and without it the store {path.parent} cannot be read. {AGAIN}"
        ) from None
    if found != content:
        raise Damaged(f"{path} does not describe this store: it is damaged or of another layout. {AGAIN}")
