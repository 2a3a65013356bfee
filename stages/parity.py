"""Whether what was stored is what the encoder says: a few rows encoded again, in another batch, and compared."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from elf.cache.layout import DType
from elf.cache.manifest import JSON
from elf.cache.rows import RaggedRows, Rows
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


def measure_parity(job: EncodeJob, name: ViewName) -> Parity:
    """Encode some rows of a finished view again and compare. Raises Failed where they are other states."""
    view, layout = view_of(job, name)
    source = (Rows if name == "plain" else RaggedRows).open(job.out / name)
    chosen = np.unique(np.linspace(0, layout.rows - 1, ROWS).astype(np.int64))
    encoder = encoder_on(job.encoder, job.device)
    largest = relative = 0.0
    for start in range(0, len(chosen), BATCH):
        batch = chosen[start : start + BATCH]
        fresh = encode_rows(encoder, view.inputs(batch)).float().cpu().reshape(-1, layout.width)
        ends = np.cumsum(layout.locate(batch)[2]).tolist()
        for row, begin, end in zip(batch.tolist(), [0, *ends[:-1]], ends, strict=True):
            if begin < end:
                difference = fresh[begin:end] - _as_float(source[row], job.dtype)
                distance = float(difference.norm() / fresh[begin:end].norm().clamp(min=1e-30))
                _check(job, name, row, distance)
                largest, relative = max(largest, float(difference.abs().max())), max(relative, distance)
    return Parity(tuple(chosen.tolist()), float(f"{largest:.3g}"), float(f"{relative:.3g}"))


def _check(job: EncodeJob, name: ViewName, row: int, distance: float) -> None:
    allowed = max(TOLERANCE[job.dtype], TOLERANCE[job.encoder.compute])
    if not distance <= allowed:
        raise Failed(
            f"Row {row} of view {name} is stored {distance:.3g} (relative) away from the same row encoded again; "
            f"{allowed:g} is allowed for {job.dtype}. The encoder does not give one row one answer here. Encode "
            "again with compute.encode.workers=1; if that passes, the workers differ in hardware or versions."
        )


def _as_float(stored: np.ndarray, dtype: DType) -> Tensor:
    raw = torch.from_numpy(stored.copy())
    return (raw.view(DTYPES[dtype]) if dtype == "bfloat16" else raw).float()
