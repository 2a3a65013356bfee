"""The lines of a training run's `metrics.jsonl` as curves short enough to draw."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

BINS = 100
SMALLEST_BIN = 4
PARTS = ("loss", "ce", "l2")
Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Curve:
    """One part of the loss. Training: mean of each bin of steps, with the 10th and 90th percentile of its steps;
    held-out: each measurement with the averaged weights and with the raw ones. Empty arrays where there is none."""

    part: str
    step: Array
    mean: Array
    low: Array
    high: Array
    heldout_step: Array
    heldout: Array
    heldout_raw: Array

    @property
    def empty(self) -> bool:
        return not (self.step.size or self.heldout_step.size)


def read_curves(lines: Iterable[Mapping[str, Any]]) -> list[Curve]:
    """Curves of loss, ce and l2. A step without rows of a branch says nothing about it and is left out there."""
    steps: list[Mapping[str, Any]] = []
    heldout: list[Mapping[str, Any]] = []
    for line in lines:
        (heldout if "heldout_loss" in line else steps).append(line)
    return [_curve(part, steps, heldout) for part in PARTS]


def _curve(part: str, steps: list[Mapping[str, Any]], heldout: list[Mapping[str, Any]]) -> Curve:
    weights = [_weight(part, line) for line in steps]
    table = np.array(
        [(line["step"], line[part], weight) for line, weight in zip(steps, weights, strict=True) if weight],
        dtype=np.float64,
    ).reshape(-1, 3)
    bins = max(1, min(BINS, len(table) // SMALLEST_BIN))
    pieces = [piece for piece in np.array_split(table, bins) if len(piece)]
    low, high = (np.array([np.percentile(piece[:, 1], q) for piece in pieces]) for q in (10, 90))
    return Curve(
        part=part,
        step=np.array([piece[:, 0].mean() for piece in pieces]),
        mean=np.array([np.average(piece[:, 1], weights=piece[:, 2]) for piece in pieces]),
        low=low,
        high=high,
        heldout_step=np.array([line["step"] for line in heldout], dtype=np.float64),
        heldout=np.array([line[f"heldout_{part}"] for line in heldout], dtype=np.float64),
        heldout_raw=np.array([line[f"heldout_raw_{part}"] for line in heldout], dtype=np.float64),
    )


def _weight(part: str, line: Mapping[str, Any]) -> int:
    """Positions behind a step's figure."""
    decoded, denoised = line["decode_positions"], line["denoise_positions"]
    return {"loss": decoded + denoised, "ce": decoded, "l2": denoised}[part]
