"""What people use instead of the store, reading the same rows: Hugging Face datasets, LitData, MosaicML Streaming."""

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from measuring import medians
from row_store import WIDTH, Case

from elf.cache.layout import Array
from elf.cache.rows import Rows

ROUNDS = 5


def against_datasets(case: Case, folder: Path) -> float:
    """Seconds of HF datasets (a fixed-size list column on the disk, mapped, whole batches) over ours."""
    import pyarrow as pa
    from datasets import Dataset, disable_progress_bars, load_from_disk

    disable_progress_bars()
    stored, size = Rows.open(case.folder), case.layout.length * WIDTH

    def tables() -> Iterator[pa.RecordBatch]:
        for shard in range(case.layout.shards):
            rows = case.layout.rows_of(shard)
            flat = np.concatenate([stored[row].reshape(-1) for row in rows])
            yield pa.record_batch({"x": pa.FixedSizeListArray.from_arrays(pa.array(flat), size)})

    Dataset(pa.Table.from_batches(tables())).save_to_disk(str(folder / "datasets"))
    peer: Any = load_from_disk(str(folder / "datasets")).with_format("numpy", dtype=np.float16)
    batches, out = case.batches(8), case.buffer()
    first = peer[batches[0].tolist()]["x"].reshape(out.shape)
    stored.gather(batches[0], out)
    if not np.array_equal(first.view(np.uint16), out.view(np.uint16)):
        raise RuntimeError("HF datasets gives other rows than the store")

    def theirs() -> None:
        for batch in batches:
            out[:] = peer[batch.tolist()]["x"].reshape(out.shape)

    def ours() -> None:
        for batch in batches:
            stored.gather(batch, out)

    seconds = medians({"ours": ours, "datasets": theirs}, rounds=ROUNDS)
    return seconds["datasets"] / seconds["ours"]


def peers(case: Case, folder: Path) -> dict[str, float | None]:
    """Seconds of other loaders over ours, row by row as they give them; None where they are not installed."""
    stored = Rows.open(case.folder)
    rows = min(case.layout.rows, 2048)
    order = np.random.default_rng(0).permutation(rows)
    out = np.empty((case.layout.length, WIDTH), np.float16)

    def ours() -> None:
        for row in order.tolist():
            out[:] = stored[row]

    found: dict[str, float | None] = {}
    for name, opened in (("litdata", _litdata), ("streaming", _streaming)):
        try:
            importlib.import_module(name)
        except ImportError:
            found[name] = None
            continue
        read = opened(stored, rows, folder / name)

        def theirs(read: Callable[[int], Array] = read) -> None:
            for row in order.tolist():
                out[:] = read(row)

        seconds = medians({"ours": ours, name: theirs}, rounds=3)
        found[name] = seconds[name] / seconds["ours"]
    return found


def _litdata(stored: Rows, rows: int, folder: Path) -> Callable[[int], Array]:
    from litdata import StreamingDataset  # pyright: ignore[reportMissingImports]
    from litdata.streaming import Cache  # pyright: ignore[reportMissingImports]

    cache = Cache(str(folder), chunk_bytes="64MB")
    for row in range(rows):
        cache[row] = {"x": np.array(stored[row])}
    cache.done()
    cache.merge()
    peer = StreamingDataset(str(folder), shuffle=False)
    return lambda row: peer[row]["x"]


def _streaming(stored: Rows, rows: int, folder: Path) -> Callable[[int], Array]:
    from streaming import MDSWriter, StreamingDataset  # pyright: ignore[reportMissingImports]

    with MDSWriter(out=str(folder), columns={"x": "ndarray"}, size_limit="64mb") as writer:
        for row in range(rows):
            writer.write({"x": np.array(stored[row])})
    peer = StreamingDataset(local=str(folder), shuffle=False, batch_size=1)
    return lambda row: peer[row]["x"]
