"""Mean and deviation of stored encoder states, together and channel by channel, by ``dask.array`` over the store.

Counted are states of tokens, not of padding, as at encode time: ``elf.stages.moments`` holds the numbers, there and
here, and ``seen_in_training`` says which views count. Blocks are whole shards: about three times a shard's bytes of
memory for each of a few threads. D channels.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import zarr

from elf.cache.layout import CHUNK_TOKENS, ArrayLayout, DType, Layout, RaggedLayout
from elf.cache.rows import open_rows
from elf.cache.store import Artifact, Store
from elf.pipeline.errors import Failed
from elf.stages.auditing import inputs_of, views_of
from elf.stages.memory import cores
from elf.stages.moments import Moments, combine, seen_in_training
from elf.stages.rows import TokenRows
from elf.stages.views import ViewName, ViewRows

THREADS = 4
PIECE = 1 << 13
"""Tokens that are made float64 at once."""
AGREES = 1e-6
"""How far, relative to the deviation, the facts of an artifact may lie from what its store holds."""

Valid = Callable[[int, int], np.ndarray]
"""Which of the stored tokens from one to before another are of tokens, (tokens,) bool."""


@dataclass(frozen=True, slots=True)
class Statistics:
    """Moments of each view, channel by channel (D of them), and what an artifact's facts say of all together."""

    views: Mapping[ViewName, tuple[Moments, ...]]
    said_mean: float
    said_std: float

    @property
    def channels(self) -> tuple[Moments, ...]:
        """Of what training sees, channel by channel."""
        each = zip(*self.views.values(), strict=True)
        return tuple(seen_in_training(dict(zip(self.views, channel, strict=True))) for channel in each)

    @property
    def whole(self) -> Moments:
        """Of what training sees, all channels together: what ``train.latents.std: measured`` divides by."""
        return combine(self.channels)

    @property
    def agrees(self) -> bool:
        """Whether the facts, by which training scales, are those of the store."""
        whole = self.whole
        near = AGREES * whole.std
        return abs(whole.mean - self.said_mean) <= near and abs(whole.std - self.said_std) <= near


def measure_channels(
    artifact: Artifact, store: Store, advance: Callable[[int], None] = lambda blocks: None
) -> Statistics:
    """Read all of an encode artifact; ``advance`` is told of every finished block.

    Raises Misconfigured for another stage, Failed where its tokens are gone or its facts name no moments, Damaged
    where a row is not what was recorded.
    """
    tokens = inputs_of(artifact, store)["tokens"]
    facts = artifact.manifest.facts
    mean, std = facts.get("mean"), facts.get("std")
    if not isinstance(mean, int | float) or not isinstance(std, int | float):
        raise Failed(f"{artifact.path} has no mean and deviation in its facts; build it again with --force.")
    with store.using([artifact.manifest.place, tokens.manifest.place]):
        views: dict[ViewName, tuple[Moments, ...]] = {
            name: _measure(artifact.path, name, tokens.path, advance) for name in views_of(artifact)
        }
    return Statistics(views, float(mean), float(std))


def _measure(
    folder: Path, name: ViewName, tokens: Path, advance: Callable[[int], None]
) -> tuple[Moments, ...]:
    """Moments of each channel of one view."""
    view = ViewRows(name, TokenRows.open(tokens))
    source = open_rows(folder / name)
    layout = source.layout
    counts = view.valid(np.arange(view.tokens.rows))
    if len(counts) != layout.rows:
        raise Failed(
            f"View {name} in {folder} holds {layout.rows:,} rows, its tokens have {len(counts):,}. Encode them again: "
            "run encode with --force."
        )
    valid = _valid(layout, counts)

    def sums(block: np.ndarray, block_info: Any) -> np.ndarray:
        start, stop = block_info[0]["array-location"][0]
        source.prove_shard(block_info[0]["chunk-location"][0], block)
        advance(1)
        return _sums(block, valid(start, stop), layout.dtype)

    summed = da.map_blocks(
        sums,
        _states(folder / name, layout),
        chunks=((5,) * layout.shards, (layout.width,)),
        meta=np.empty((0, 0)),
    )
    found = summed.compute(scheduler="threads", num_workers=min(cores(), THREADS))
    blocks = np.asarray(found).reshape(layout.shards, 5, layout.width)
    return tuple(
        combine(
            Moments(int(n), total, squares, low, high)
            for n, total, squares, low, high in blocks[:, :, c].tolist()
        )
        for c in range(layout.width)
    )


def _states(folder: Path, layout: Layout) -> Any:
    """The stored numbers as a dask array (tokens, D), one block a shard."""
    if isinstance(layout, ArrayLayout):
        array = zarr.open_array(str(folder), mode="r")
        blocks = da.from_zarr(array, chunks=(layout.shard_rows, layout.length, layout.width))
        return blocks.reshape(-1, layout.width)
    assert isinstance(layout, RaggedLayout)
    array = zarr.open_array(str(folder / "tokens"), mode="r")
    return da.from_zarr(array, chunks=(layout.slots * CHUNK_TOKENS, layout.width))


def _valid(layout: Layout, counts: np.ndarray) -> Valid:
    """Of row r the first ``counts[r]`` stored tokens are of tokens; what lies between ragged rows is not."""
    if isinstance(layout, ArrayLayout):

        def of_rows(start: int, stop: int) -> np.ndarray:
            rows = counts[start // layout.length : stop // layout.length]
            return (np.arange(layout.length) < rows[:, None]).reshape(-1)

        return of_rows
    assert isinstance(layout, RaggedLayout)
    starts = layout.starts

    def of_tokens(start: int, stop: int) -> np.ndarray:
        first, last = np.searchsorted(starts, (start, stop))
        edges = np.zeros(stop - start + 1, np.int64)
        np.add.at(edges, starts[first:last] - start, 1)
        np.add.at(edges, starts[first:last] + counts[first:last] - start, -1)
        return np.cumsum(edges[:-1]) > 0

    return of_tokens


def _sums(block: np.ndarray, keep: np.ndarray, dtype: DType) -> np.ndarray:
    """Count, sum, sum of squares, lowest and highest of each channel of the tokens to ``keep``, (5, D) float64."""
    out = np.zeros((5, block.shape[1]))
    out[3], out[4] = np.inf, -np.inf
    for place in range(0, len(block), PIECE):
        part = _wide(block[place : place + PIECE][keep[place : place + PIECE]], dtype)
        if len(part):
            out[0] += len(part)
            out[1] += part.sum(axis=0)
            out[2] += np.square(part).sum(axis=0)
            out[3], out[4] = np.minimum(out[3], part.min(axis=0)), np.maximum(out[4], part.max(axis=0))
    return out


def _wide(stored: np.ndarray, dtype: DType) -> np.ndarray:
    if dtype == "bfloat16":
        return (stored.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return stored.astype(np.float64)
