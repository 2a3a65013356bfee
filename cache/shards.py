"""Writing an embedding store: one task owns one whole shard and leaves a record when the shard is on the disk.

    write_metadata → write_shard (any order, any process) → finalise

A shard is streamed to a temporary file while it is checked and hashed, then linked under its name, which
never overwrites; `parts/<i>.json` is written last and is what makes a shard finished. `crc/<i>.npy` holds the
CRC-32C of every row, for zarr does not notice a flipped byte. All of it is a function of the rows alone.
"""

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import xxhash

from elf.cache.errors import CacheError, Damaged, NotFinite
from elf.cache.files import (
    crc32c,
    digest_file,
    fsync_folder,
    make_folder,
    temporary_beside,
    write_atomic,
    writing,
)
from elf.cache.layout import STORAGE, Array, Layout, footer, used_slots
from elf.cache.parts import ShardRecord, check_document, read_record, record_path, shard_fault, write_record


def write_metadata(folder: Path, layout: Layout) -> None:
    """Write what describes the store. Raises Damaged where another store's description stands already."""
    for name, content in layout.documents().items():
        path = folder / name
        if path.exists():
            check_document(path, content)
        else:
            make_folder(path.parent)
            write_atomic(path, content)


def write_shard(
    folder: Path, layout: Layout, shard: int, blocks: Iterable[Array | memoryview]
) -> ShardRecord:
    """Write one shard from its rows in order, cut into blocks of whole rows, each used before the next is made.

    A block is (n, length, width) or, ragged, (tokens, width) in the stored dtype; bfloat16 comes as int16 or
    uint16 bits. Raises NotFinite naming the row of the store, CacheError if blocks and layout disagree or the
    shard exists with other content, Unwritable if the disk refuses.
    """
    path = folder / layout.shard_name(shard)
    make_folder(path.parent)
    temporary = temporary_beside(path)
    try:
        record = _stream(temporary, layout, shard, blocks)
        with writing(path):
            _link(temporary, folder, layout, shard, record)
    finally:
        temporary.unlink(missing_ok=True)
    fsync_folder(path.parent)
    write_record(folder, shard, record)
    return record


def finished_parts(folder: Path, layout: Layout) -> dict[int, ShardRecord]:
    """The shards that need no work any more: recorded, of the right size and with the right index."""
    found: dict[int, ShardRecord] = {}
    for shard in range(layout.shards):
        try:
            record = read_record(folder, layout, shard)
        except Damaged:
            continue
        if shard_fault(folder, layout, shard) is None:
            found[shard] = record
    return found


def finalise(folder: Path, layout: Layout) -> dict[int, ShardRecord]:
    """Every shard's record, once all are there and every shard's bytes are those that were recorded.

    Raises CacheError while a shard is missing. A shard that changed since it was written loses its record and
    raises Damaged, so that the same command encodes it again.
    """
    for name, content in layout.documents().items():
        check_document(folder / name, content)
    found = finished_parts(folder, layout)
    missing = [shard for shard in range(layout.shards) if shard not in found]
    if missing:
        raise CacheError(
            f"{folder} lacks {len(missing)} of {layout.shards} shards, the first is shard {missing[0]}; write every "
            "shard before the store is finished."
        )
    for shard, record in found.items():
        path = folder / layout.shard_name(shard)
        if digest_file(path) != record.digest:
            record_path(folder, shard).unlink()
            path.unlink()
            raise Damaged(
                f"Shard {shard} of {folder} changed after it was written (digest of {path}). It was removed; "
                "run the same command again to encode it anew, and look at the disk's health."
            )
    return found


def _stream(temporary: Path, layout: Layout, shard: int, blocks: Iterable[Array | memoryview]) -> ShardRecord:
    storage = STORAGE[layout.dtype]
    tokens: list[int] = layout.tokens_of(shard).tolist()
    crc = np.zeros(len(tokens), np.uint32)
    digest = xxhash.xxh3_128()
    scratch = np.empty((layout.length, layout.width), storage.bits)
    first = layout.rows_of(shard).start
    row = size = 0
    with writing(temporary):
        file = temporary.open("xb", buffering=0)
    # The kernel takes a block's bytes while they are looked at: each costs about as much as the other.
    with file, ThreadPoolExecutor(1, thread_name_prefix="write") as writer:
        for block in blocks:
            bits = _bits(block, layout, shard)
            written = writer.submit(_write, file.fileno(), _raw(bits), temporary)
            place = 0
            while row < len(tokens) and place + tokens[row] <= len(bits):
                part = bits[place : place + tokens[row]]
                _check_finite(part, scratch, layout, first + row)
                crc[row] = crc32c(part)
                digest.update(_raw(part))
                place += tokens[row]
                row += 1
            if place != len(bits):
                raise CacheError(
                    f"Shard {shard}: a block of {len(bits)} tokens does not end where row {row} does; give whole rows."
                )
            size += written.result()
        if row != len(tokens):
            raise CacheError(
                f"Shard {shard} got {row} rows instead of {len(tokens)}; give each of its rows once, in order."
            )
        for tail in _tail(layout, shard, size):
            digest.update(tail)
            size += _write(file.fileno(), tail, temporary)
        with writing(temporary):
            os.fchmod(file.fileno(), 0o444)
            os.fsync(file.fileno())
    return ShardRecord(len(tokens), size, f"xxh3:{digest.hexdigest()}", crc)


def _bits(block: Array | memoryview, layout: Layout, shard: int) -> Array:
    """The block as (tokens, width) unsigned integers, without a copy where it is contiguous."""
    storage = STORAGE[layout.dtype]
    array = np.frombuffer(block, storage.dtype) if isinstance(block, memoryview) else block
    if layout.dtype == "bfloat16" and array.dtype == np.int16:
        array = array.view(np.uint16)
    flat = array.ndim == 1 and isinstance(block, memoryview)
    shaped = (
        array.ndim > 1 and array.shape[-1] == layout.width and array.shape[1:-1] in ((), (layout.length,))
    )
    if array.dtype != storage.dtype or not (flat or shaped):
        raise CacheError(
            f"Shard {shard} got a block of {array.dtype} {array.shape}; the store holds {layout.dtype} "
            f"({storage.dtype}), {layout.length} tokens of {layout.width}: give it blocks of these."
        )
    return np.ascontiguousarray(array).view(storage.bits).reshape(-1, layout.width)


def _check_finite(bits: Array, scratch: Array, layout: Layout, row: int) -> None:
    """All exponent bits set is what NaN and the infinities have in common; 13 × faster than numpy.isfinite."""
    exponent = STORAGE[layout.dtype].exponent
    found = np.bitwise_and(bits, bits.dtype.type(exponent), out=scratch[: len(bits)])
    if found.size and int(found.max()) == exponent:
        token, channel = (int(i) for i in np.argwhere(found == exponent)[0])
        raise NotFinite(
            row,
            f"Row {row}, token {token}, channel {channel} is not a finite {layout.dtype} number; nothing of its "
            "shard was stored. If it is an overflow, choose a dtype of wider range (bfloat16, float32).",
        )


def _tail(layout: Layout, shard: int, size: int) -> tuple[memoryview, bytes]:
    storage = STORAGE[layout.dtype]
    used = used_slots(layout, shard)
    fill = (used * layout.chunk_bytes - size) // storage.bits.itemsize
    end = footer(slots=layout.slots, used=used, chunk_bytes=layout.chunk_bytes)
    return _raw(np.full(fill, storage.nan_bits, storage.bits)), end


def _write(descriptor: int, content: memoryview | bytes, path: Path) -> int:
    rest = memoryview(content)
    with writing(path):
        while rest:
            rest = rest[os.write(descriptor, rest) :]
    return len(content)


def _raw(array: Array) -> memoryview:
    return memoryview(array.reshape(-1).view(np.uint8).data)


def _link(temporary: Path, folder: Path, layout: Layout, shard: int, record: ShardRecord) -> None:
    """Give the finished file its name. One that stands there is kept if equal and replaced if it is broken."""
    path = folder / layout.shard_name(shard)
    try:
        os.link(temporary, path)
        return
    except FileExistsError:
        if digest_file(path) == record.digest:
            return
    try:
        changed = read_record(folder, layout, shard).digest == record.digest
    except Damaged:
        changed = False
    if not changed and shard_fault(folder, layout, shard) is None:
        raise CacheError(
            f"Shard {shard} was written before with other content ({path}): the encoder is not deterministic, or "
            "the file changed on the disk. Delete the file and its record to write it anew."
        )
    temporary.replace(path)
