"""The lines of a training run's `metrics.jsonl` as curves short enough to draw: over steps, and over noise levels."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elf.stages.model.config import LEVELS
from elf.stages.tally import BRANCHES, BY_LEVEL, counts_of, means_of_nothing, unit_of
from elf.stages.token_tally import nats_in

BINS = 100
SMALLEST_BIN = 4
PARTS = ("loss", "ce", "l2")
THIRDS = 3
RAREST = 1e-3
"""Share of a third's positions below which a noise level is left out: its mean would be that of a row or two."""
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


@dataclass(frozen=True, slots=True)
class Levels:
    """One branch's loss over the noise level: `t` the middles of the bins, `thirds` (3, K) the means of the first,
    second and last third of the steps, `heldout` (K,) the last measurement with the averaged weights. NaN where a
    level had no position, or next to none."""

    part: str
    t: Array
    thirds: Array
    heldout: Array

    @property
    def empty(self) -> bool:
        return bool(np.isnan(self.thirds).all())


def read_curves(lines: Iterable[Mapping[str, Any]]) -> list[Curve]:
    """Curves of loss, ce and l2, of a baseline of its nats. A step, or a held-out measurement, without rows of a
    branch says nothing about it and is left out there."""
    steps: list[tuple[float, ...]] = []
    heldout: list[Mapping[str, Any]] = []
    parts: tuple[str, ...] = PARTS
    for line in lines:
        if "heldout_loss" in line:
            heldout.append(line)
        else:
            parts = PARTS if (nats := nats_in(line)) is None else (nats,)
            steps.append(
                (line["step"], *(figure for part in parts for figure in (line[part], _weight(part, line))))
            )
    table = np.array(steps, dtype=np.float64).reshape(-1, 1 + 2 * len(parts))
    return [
        _curve(part, table[:, [0, 1 + 2 * place, 2 + 2 * place]], heldout) for place, part in enumerate(parts)
    ]


def read_levels(lines: Iterable[Mapping[str, Any]]) -> list[Levels]:
    """Each branch's loss over the noise level; none where the lines do not tell it."""
    steps: list[Array] = []
    branches: Mapping[str, str] = {}
    heldout: Mapping[str, Any] | None = None
    for line in lines:
        if "heldout_loss" in line:
            heldout = line
        elif parts := _told_by_level(line):
            branches = parts
            steps.append(_by_level(line, "", branches))
    if not steps:
        return []
    thirds = np.stack([np.sum(third, axis=0) for third in np.array_split(np.array(steps), THIRDS)])
    held = np.full((2 * len(branches), LEVELS), np.nan)
    if heldout is not None and _told_by_level(heldout, "heldout_"):
        held = _by_level(heldout, "heldout_", branches)
    middles = (np.arange(LEVELS) + 0.5) / LEVELS
    return [
        Levels(
            part,
            middles,
            _means(thirds[:, 2 * place], thirds[:, 2 * place + 1]),
            _means(*held[2 * place :][:2]),
        )
        for place, part in enumerate(branches)
    ]


def _told_by_level(line: Mapping[str, Any], prefix: str = "") -> Mapping[str, str]:
    """What a line tells by noise level, with what its units are called; nothing of what knows no noise."""
    if f"{prefix}ce_sum{BY_LEVEL}" in line:
        unit = unit_of(line, prefix)
        return {part: f"{branch}_{unit}" for part, branch in BRANCHES.items()}
    return {"nll_bound": "positions"} if f"{prefix}nll_bound_sum{BY_LEVEL}" in line else {}


def _by_level(line: Mapping[str, Any], prefix: str, branches: Mapping[str, str]) -> Array:
    """(2 each, K): each branch's sums and units."""
    names = [name for part, units in branches.items() for name in (f"{part}_sum", units)]
    return np.array([line[f"{prefix}{name}{BY_LEVEL}"] for name in names], dtype=np.float64)


def _means(sums: Array, positions: Array) -> Array:
    rare = ~(positions > RAREST * positions.sum(axis=-1, keepdims=True))
    return np.where(rare, np.nan, sums / np.where(rare, 1.0, positions))


def _curve(part: str, table: Array, heldout: list[Mapping[str, Any]]) -> Curve:
    """From rows of (step, figure, positions behind it)."""
    table = table[table[:, 2] > 0]
    heldout = [line for line in heldout if f"heldout_{part}" not in means_of_nothing(line)]
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


def _weight(part: str, line: Mapping[str, Any]) -> float:
    """Units behind a step's figure."""
    if part in line and nats_in(line) == part:
        return line["positions"]
    decoded, denoised = counts_of(line)
    return {"loss": decoded + denoised, "ce": decoded, "l2": denoised}[part]
