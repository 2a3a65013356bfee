"""What a step, or a held-out measurement, came to over all of its rows: the losses of both branches by noise level.

Training averages over positions, distillation over rows, each of them the mean over its own positions: there a decode
row is one, in shares over the noise levels of its positions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from elf.cache.manifest import JSON
from elf.stages.model.config import LEVELS

BY_LEVEL = "_by_t"
"""Ends the names of figures that are lists, one number for each tenth of t from 0 to 1."""

BRANCHES = {"ce": "decode", "l2": "denoise"}
"""Branches by the figures that are means over their units."""
Unit = Literal["positions", "rows"]
"""What a loss is a mean over."""


@dataclass(frozen=True, slots=True)
class Tally:
    """By noise level: Σ cross-entropy of the decode branch and its units, Σ squared error of the denoise branch and
    its units."""

    ce_sums: tuple[float, ...]
    decoded: tuple[float, ...]
    l2_sums: tuple[float, ...]
    denoised: tuple[float, ...]

    @classmethod
    def of(cls, numbers: Sequence[float]) -> "Tally":
        """From the 4 · K numbers of ``Loss.levels_4K``, added up."""
        starts = range(0, 4 * LEVELS, LEVELS)
        ce, decoded, l2, denoised = (tuple(numbers[start : start + LEVELS]) for start in starts)
        return cls(ce, decoded, l2, denoised)

    @property
    def loss(self) -> float:
        """Over all units that count."""
        units = sum(self.decoded) + sum(self.denoised)
        return (sum(self.ce_sums) + sum(self.l2_sums)) / max(units, 1)

    def means(self) -> dict[str, float]:
        """``loss``, and ``ce`` and ``l2`` each over its own branch's units (0 if there are none)."""
        return {
            "loss": self.loss,
            "ce": sum(self.ce_sums) / max(sum(self.decoded), 1),
            "l2": sum(self.l2_sums) / max(sum(self.denoised), 1),
        }

    def besides(self) -> dict[str, float]:
        """What a held-out measurement tells besides its means."""
        return {}

    def sums(self) -> dict[str, JSON]:
        """Each branch's sums of error by noise level."""
        return {f"ce_sum{BY_LEVEL}": list(self.ce_sums), f"l2_sum{BY_LEVEL}": list(self.l2_sums)}

    def counts(self, unit: Unit) -> dict[str, JSON]:
        """Each branch's units, ``decode_positions`` and ``denoise_positions`` of positions."""
        return {f"decode_{unit}": _whole(sum(self.decoded)), f"denoise_{unit}": _whole(sum(self.denoised))}

    def counts_by_level(self, unit: Unit) -> dict[str, JSON]:
        """Each branch's units by noise level."""
        return {
            f"decode_{unit}{BY_LEVEL}": [_whole(each) for each in self.decoded],
            f"denoise_{unit}{BY_LEVEL}": [_whole(each) for each in self.denoised],
        }


def unit_of(line: Mapping[str, Any], prefix: str = "") -> Unit:
    """What the losses of a line of metrics are means over."""
    return (
        "rows"
        if f"{prefix}denoise_rows" in line or f"{prefix}denoise_rows{BY_LEVEL}" in line
        else "positions"
    )


def counts_of(line: Mapping[str, Any]) -> tuple[float, float]:
    """Units of the decode and of the denoise branch that a line of metrics is over."""
    unit = unit_of(line)
    return line[f"decode_{unit}"], line[f"denoise_{unit}"]


def means_of_nothing(line: Mapping[str, Any]) -> frozenset[str]:
    """Figures of a line of metrics that no unit is behind: they stand there as 0 and say nothing."""
    found: set[str] = set()
    for part, branch in BRANCHES.items():
        for unit in get_args(Unit):
            if line.get(f"{branch}_{unit}") == 0:
                found.add(part)
            held = line.get(f"heldout_{branch}_{unit}{BY_LEVEL}")
            if held is not None and not any(held):
                found |= {f"heldout_{part}", f"heldout_raw_{part}"}
    return frozenset(found)


def _whole(number: float) -> int | float:
    return int(number) if number.is_integer() else number
