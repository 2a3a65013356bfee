"""Whether what was stored is what the encoder says: a few rows encoded again, in another batch, and compared."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from elf.cache.layout import DType
from elf.cache.manifest import JSON
from elf.cache.rows import open_rows
from elf.pipeline.errors import Failed
from elf.stages.encoding import DTYPES, EncodeJob, encoder_on, view_of
from elf.stages.views import ViewName, encode_rows

ROWS = 8
BATCH = 3
TOLERANCE: Mapping[str, float] = {"float32": 1e-4, "float16": 2e-3, "bfloat16": 2e-2}
"""Largest relative distance of a stored row from the same row encoded again, by dtype."""


@dataclass(frozen=True, slots=True)
class Parity:
    """Of the ``rows`` compared: the largest difference of two numbers, and of two rows relative to their size.

    Both have three digits: enough to judge by, few enough not to change with the last bits.
    """

    rows: tuple[int, ...]
    largest: float
    relative: float

    def plain(self) -> dict[str, JSON]:
        """As JSON."""
        return {"rows": [*self.rows], "max_abs": self.largest, "relative": self.relative}


@dataclass(frozen=True, slots=True)
class Compared:
    """One stored row beside the same row encoded again: the largest difference of two numbers, the distance relative
    to the row's size, and how many of its ``numbers`` are ``equal`` to the bit once cast to the stored dtype."""

    row: int
    largest: float
    relative: float
    equal: int
    numbers: int


def measure_parity(job: EncodeJob, name: ViewName) -> Parity:
    """Encode some rows of a finished view again and compare. Raises Failed where they are other states."""
    layout = view_of(job, name)[1]
    chosen = np.unique(np.linspace(0, layout.rows - 1, ROWS).astype(np.int64))
    largest = relative = 0.0
    for each in compare_rows(job, name, chosen):
        _check(job, name, each)
        largest, relative = max(largest, each.largest), max(relative, each.relative)
    return Parity(tuple(chosen.tolist()), float(f"{largest:.3g}"), float(f"{relative:.3g}"))


def compare_rows(job: EncodeJob, name: ViewName, rows: np.ndarray) -> Iterator[Compared]:
    """Encode ``rows`` (n,) of a finished view again and compare each that has any token.

    Raises Damaged where a stored row is not what was recorded.
    """
    view, layout = view_of(job, name)
    source = open_rows(job.out / name)
    encoder = encoder_on(job.encoder, job.device)
    for start in range(0, len(rows), BATCH):
        batch = rows[start : start + BATCH]
        fresh = encode_rows(encoder, view.inputs(batch)).float().cpu().reshape(-1, layout.width)
        ends = np.cumsum(layout.locate(batch)[2]).tolist()
        for row, begin, end in zip(batch.tolist(), [0, *ends[:-1]], ends, strict=True):
            if begin < end:
                yield _compare(row, _as_float(source.proven(row), job.dtype), fresh[begin:end], job.dtype)


def tolerance(job: EncodeJob) -> float:
    """Largest relative distance that is allowed between a stored row and the same row encoded again."""
    return max(TOLERANCE[job.dtype], TOLERANCE[job.encoder.compute])


def _compare(row: int, stored: Tensor, fresh: Tensor, dtype: DType) -> Compared:
    difference = fresh - stored
    return Compared(
        row=row,
        largest=float(difference.abs().max()),
        relative=float(difference.norm() / fresh.norm().clamp(min=1e-30)),
        equal=int((fresh.to(DTYPES[dtype]).float() == stored).sum()),
        numbers=stored.numel(),
    )


def _check(job: EncodeJob, name: ViewName, compared: Compared) -> None:
    allowed = tolerance(job)
    if not compared.relative <= allowed:
        raise Failed(
            f"Row {compared.row} of view {name} is stored {compared.relative:.3g} (relative) away from the same row "
            f"encoded again; {allowed:g} is allowed for {job.dtype}. The encoder does not give one row one answer "
            "here. Encode again with compute.encode.workers=1; if that passes, the workers differ in hardware or "
            "versions."
        )


def _as_float(stored: np.ndarray, dtype: DType) -> Tensor:
    raw = torch.from_numpy(stored.copy())
    return (raw.view(DTYPES[dtype]) if dtype == "bfloat16" else raw).float()
