"""One part of an encode: one shard of one view, encoded and written, by whichever process owns it.

The encoder runs in the calling thread while a second thread checks, hashes and writes the block before. What the
numbers were (their moments) is left beside the parts' records, before the record that calls the shard finished.
"""

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from queue import Empty, Full, Queue
from types import TracebackType

import numpy as np
import torch
from torch import Tensor

from elf.cache.errors import CacheError, NotFinite
from elf.cache.files import make_folder, write_atomic
from elf.cache.layout import DType, Layout
from elf.cache.shards import finished_parts, write_shard
from elf.cache.store import Artifact
from elf.pipeline.errors import Failed
from elf.pipeline.stage import Compute
from elf.stages.config import Encode
from elf.stages.devices import choose_device
from elf.stages.encoder import Encoder, EncoderInfo, describe_encoder, load_encoder
from elf.stages.moments import Moments, combine, moments_of
from elf.stages.rows import TokenRows
from elf.stages.views import Inputs, ViewName, ViewRows, encode_rows

MOMENTS = "moments"
_lock = threading.Lock()
DTYPES: dict[str, torch.dtype] = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
}


@dataclass(frozen=True, slots=True)
class EncodeJob:
    """What every part of one encode shares; plain data that any process can be given.

    ``tokens`` is the tokenize artifact and ``content`` its digest; ``out`` gets one folder per view.
    """

    tokens: Path
    content: str
    encoder: EncoderInfo
    out: Path
    dtype: DType
    shard_bytes: int
    device: str
    batch_tokens: int


def job_of(section: Encode, inputs: Mapping[str, Artifact], out: Path, compute: Compute) -> EncodeJob:
    """The job of an encode step. Raises as `describe_encoder`."""
    return EncodeJob(
        tokens=inputs["tokens"].path,
        content=inputs["tokens"].manifest.content,
        encoder=describe_encoder(
            inputs["encoder"].path / "data", layer=section.layer, compute=section.compute
        ),
        out=out,
        dtype=section.dtype,
        shard_bytes=section.shard_bytes,
        device=choose_device(compute.device),
        batch_tokens=compute.batch_tokens,
    )


@dataclass(frozen=True, slots=True)
class Part:
    """One shard of one view."""

    view: ViewName
    shard: int


def view_of(job: EncodeJob, name: ViewName) -> tuple[ViewRows, Layout]:
    """A view's rows and where its states lie."""
    return _view(job.tokens, job.content, name, job.encoder.width, job.dtype, job.shard_bytes)


def encode_part(job: EncodeJob, part: Part, advance: Callable[[int], None]) -> None:
    """Encode and write one shard; ``advance`` is told of every batch, in encoder positions.

    Raises Failed naming row, layer and dtype where a state is not finite or overflows; nothing is stored then.
    """
    view, layout = view_of(job, part.view)
    encoder = encoder_on(job.encoder, job.device)
    rows = layout.rows_of(part.shard)
    size = max(1, job.batch_tokens // view.length)
    try:
        with _ShardWriter(job, view, layout, part.shard) as writer:
            for start in range(rows.start, rows.stop, size):
                batch = np.arange(start, min(start + size, rows.stop))
                inputs = view.inputs(batch)
                stored = as_stored(encoder, inputs, job.dtype).cpu()
                writer.put(_Block(batch, stored, inputs.valid_B))
                advance(len(batch) * view.length)
    except NotFinite as error:
        raise Failed(refusal(encoder, view, error.row, job.dtype)) from error


def as_stored(encoder: Encoder, inputs: Inputs, dtype: DType) -> Tensor:
    """States of the kept positions, cast as a store holds them, on the encoder's device: (B, L, D) or (tokens, D)."""
    return encode_rows(encoder, inputs).to(DTYPES[dtype])


def finished(job: EncodeJob, name: ViewName) -> set[int]:
    """The shards of a view that need no work any more."""
    _, layout = view_of(job, name)
    done = finished_parts(job.out / name, layout)
    return {shard for shard in done if _moments_path(job, name, shard).exists()}


def read_moments(job: EncodeJob, name: ViewName) -> Moments:
    """Moments of a whole view, from what its parts left."""
    _, layout = view_of(job, name)
    paths = [_moments_path(job, name, shard) for shard in range(layout.shards)]
    return combine(Moments(**json.loads(path.read_text())) for path in paths)


@lru_cache(maxsize=1)
def _loaded(info: EncoderInfo, device: str) -> Encoder:
    return load_encoder(info, device)


def encoder_on(info: EncoderInfo, device: str) -> Encoder:
    """The encoder, loaded once per process and kept until another one is asked for."""
    with _lock:
        return _loaded(info, device)


def forget_encoder() -> None:
    """Free the encoder that this process holds."""
    _loaded.cache_clear()


@lru_cache(maxsize=4)
def _view(
    path: Path, content: str, name: ViewName, width: int, dtype: DType, shard_bytes: int
) -> tuple[ViewRows, Layout]:
    view = ViewRows(name, TokenRows.open(path))
    return view, view.layout(width, dtype, shard_bytes)


@dataclass(frozen=True, slots=True, eq=False)
class _Block:
    """Neighbouring rows in the stored dtype, on the CPU: (B, L, D) or (tokens, D)."""

    rows: np.ndarray
    states: Tensor
    valid_B: np.ndarray


class _ShardWriter:
    """Writes one shard in a thread of its own, from blocks put in the order of their rows."""

    def __init__(self, job: EncodeJob, view: ViewRows, layout: Layout, shard: int) -> None:
        self.job, self.view, self.layout, self.shard = job, view, layout, shard
        self._blocks: Queue[_Block | None] = Queue(maxsize=2)
        self._given_up = False
        self._fault: Exception | None = None
        self._thread = threading.Thread(target=self._write, name=f"shard-{shard}", daemon=True)

    def __enter__(self) -> "_ShardWriter":
        self._thread.start()
        return self

    def put(self, block: _Block | None) -> None:
        """Hand over the next block. Raises what went wrong with an earlier one."""
        while True:
            if self._fault is not None:
                raise self._fault
            try:
                return self._blocks.put(block, timeout=0.1)
            except Full:
                continue

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait until the shard is finished; after an exception, until nothing of it is left."""
        if kind is None:
            self.put(None)
        else:
            self._given_up = True
        self._thread.join()
        if self._fault is not None and error is None:
            raise self._fault

    def _write(self) -> None:
        try:
            write_shard(self.job.out / self.view.name, self.layout, self.shard, self._stored())
        except Exception as error:  # carried over to the thread that waits
            self._fault = error

    def _stored(self) -> Iterator[np.ndarray]:
        parts: list[Moments] = []
        while (block := self._next()) is not None:
            raw = block.states.view(torch.int16) if block.states.dtype == torch.bfloat16 else block.states
            yield raw.numpy()  # comes back once the block was found finite and is on its way to the disk
            parts += self._moments(block)
        path = _moments_path(self.job, self.view.name, self.shard)
        make_folder(path.parent)
        write_atomic(path, json.dumps(combine(parts).plain()))

    def _next(self) -> _Block | None:
        while True:
            try:
                return self._blocks.get(timeout=0.1)
            except Empty:
                if self._given_up:
                    raise CacheError(f"Shard {self.shard} was given up.") from None

    def _moments(self, block: _Block) -> list[Moments]:
        """Of each row: of its states that are of tokens."""
        values = block.states.reshape(-1, self.layout.width).double().numpy()
        ends = np.cumsum(self.layout.locate(block.rows)[2])
        starts = [0, *ends[:-1].tolist()]
        return [
            moments_of(values[start : start + valid])
            for start, valid in zip(starts, block.valid_B.tolist(), strict=True)
        ]


def _moments_path(job: EncodeJob, name: ViewName, shard: int) -> Path:
    return job.out / MOMENTS / name / f"{shard}.json"


def refusal(encoder: Encoder, view: ViewRows, row: int, dtype: DType) -> str:
    """Which hidden layer of which row first holds what cannot be stored, in words."""
    info = encoder.info
    highest = torch.finfo(DTYPES[dtype]).max
    inputs = view.inputs(np.array([row]))
    what = "is not finite"
    layer = info.layer
    for number, state in enumerate(encoder.trace(inputs.ids_BL, inputs.mask)):
        if not bool(torch.isfinite(state).all()):
            layer = number
            break
    else:
        largest = float(encode_rows(encoder, inputs).abs().max())
        what = f"reaches {largest:.4g}, beyond the {highest:.4g} of {dtype}"
    cure = "store a dtype of wider range (encode.dtype: bfloat16 or float32)"
    if layer != info.layer or "finite" in what:
        cure = "look at that row's text and at the encoder's weights" + (
            "" if info.compute == "float32" else ", or compute in float32 (encode.compute)"
        )
    return (
        f"Row {row} cannot be stored (view {view.name}): hidden layer {layer} of the encoder "
        f"({info.kind} in {info.folder}, computed in {info.compute}) {what}. It would have been stored as {dtype}; "
        f"nothing of its shard was. To go on, {cure}."
    )
