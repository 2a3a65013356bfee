"""What a step, or a held-out measurement, came to over all of its rows: the losses of both branches by noise level."""

from collections.abc import Sequence
from dataclasses import dataclass

from elf.cache.manifest import JSON
from elf.stages.model.config import LEVELS

BY_LEVEL = "_by_t"
"""Ends the names of figures that are lists, one number for each tenth of t from 0 to 1."""


@dataclass(frozen=True, slots=True)
class Tally:
    """By noise level: Σ cross-entropy of the decode branch and its positions, Σ squared error of the denoise branch and
    its positions."""

    ce_sums: tuple[float, ...]
    decoded: tuple[int, ...]
    l2_sums: tuple[float, ...]
    denoised: tuple[int, ...]

    @classmethod
    def of(cls, numbers: Sequence[float]) -> "Tally":
        """From the 4 · K numbers of ``Loss.levels_4K``, added up."""
        starts = range(0, 4 * LEVELS, LEVELS)
        ce, decoded, l2, denoised = (tuple(numbers[start : start + LEVELS]) for start in starts)
        return cls(ce, tuple(map(int, decoded)), l2, tuple(map(int, denoised)))

    @property
    def loss(self) -> float:
        """Over all positions that count."""
        positions = sum(self.decoded) + sum(self.denoised)
        return (sum(self.ce_sums) + sum(self.l2_sums)) / max(positions, 1)

    def means(self) -> dict[str, float]:
        """``loss``, and ``ce`` and ``l2`` each over its own branch's positions (0 if there are none)."""
        return {
            "loss": self.loss,
            "ce": sum(self.ce_sums) / max(sum(self.decoded), 1),
            "l2": sum(self.l2_sums) / max(sum(self.denoised), 1),
        }

    def sums(self) -> dict[str, JSON]:
        """Each branch's sums of error by noise level."""
        return {f"ce_sum{BY_LEVEL}": list(self.ce_sums), f"l2_sum{BY_LEVEL}": list(self.l2_sums)}

    def positions(self) -> dict[str, JSON]:
        """Each branch's positions by noise level."""
        return {
            f"decode_positions{BY_LEVEL}": list(self.decoded),
            f"denoise_positions{BY_LEVEL}": list(self.denoised),
        }
