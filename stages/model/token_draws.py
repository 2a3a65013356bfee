"""What the baselines draw: a pure function of (seed, step, row) in training and of (seed, sample) in sampling.

Shapes: B rows, L positions, N positions of a text.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import torch
from torch import Tensor

from elf.stages.model.config import ObjectiveConfig
from elf.stages.model.draws import row_numbers, seed_of

SMALLEST_SHARE = 1e-3
"""Of positions that are masked at least: a row counts by the inverse of its share."""
GOLDEN = (sqrt(5) - 1) / 2


@dataclass(frozen=True, slots=True)
class TokenDraws:
    """What one training step of an autoregressive model draws: nothing but where dropout begins.

    `drop_B` says of no row that its condition is dropped. It is on the CPU, as all that chooses rows.
    """

    drop_B: Tensor
    dropout_seed: int = 0

    def take(self, chosen: slice) -> "TokenDraws":
        """Those of some of the rows. Fewer than all get a dropout seed of their own."""
        return TokenDraws(self.drop_B[chosen], _seed_of_part(self, chosen))


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskDraws(TokenDraws):
    """What one training step of a masked model draws: the share of each row's positions that is masked, and for each
    position a number of [0, 1); it is masked where that lies below the share."""

    share_B: Tensor
    place_BL: Tensor

    def take(self, chosen: slice) -> "MaskDraws":
        """Those of some of the rows."""
        return MaskDraws(
            drop_B=self.drop_B[chosen],
            dropout_seed=_seed_of_part(self, chosen),
            share_B=self.share_B[chosen],
            place_BL=self.place_BL[chosen],
        )


def draw_tokens(
    seed: int,
    step: int,
    rows: Sequence[int],
    *,
    length: int,
    width: int,
    objective: ObjectiveConfig,
    device: torch.device | str = "cpu",
) -> TokenDraws:
    """The numbers of one step of an autoregressive model."""
    return TokenDraws(_nothing_dropped(rows), seed_of("dropout", seed, step, *rows))


def draw_masks(
    seed: int,
    step: int,
    rows: Sequence[int],
    *,
    length: int,
    width: int,
    objective: ObjectiveConfig,
    device: torch.device | str = "cpu",
) -> MaskDraws:
    """The numbers of one step of a masked model for the given places in its batch.

    Shares are spread evenly over a step (Kingma et al. 2021 do it by place / batch): those of neighbouring places
    differ by the golden ratio, from a start that the step draws, so that they need not know how large the batch is.
    """
    start = seed_of("masked", seed, step) / 2**63
    spread = [SMALLEST_SHARE + (1 - SMALLEST_SHARE) * ((start + GOLDEN * row) % 1.0) for row in rows]
    seeds = [seed_of("mask", seed, step, row) for row in rows]
    (place_BL,) = row_numbers(seeds, length, 0, lambda uniform_L, _: (uniform_L,))
    return MaskDraws(
        drop_B=_nothing_dropped(rows),
        dropout_seed=seed_of("dropout", seed, step, *rows),
        share_B=torch.tensor(spread, dtype=torch.float32, device=device),
        place_BL=place_BL.to(device),
    )


def draw_choices(
    seed: int, samples: Sequence[int], count: int, *, what: str, device: torch.device | str = "cpu"
) -> Tensor:
    """(B, N) float64 of [0, 1): what decides for each position of the given samples, `what` telling one decision
    from another."""
    choices_BN = torch.empty(len(samples), count, dtype=torch.float64)
    generator = torch.Generator()
    for row, sample in enumerate(samples):
        generator.manual_seed(seed_of(what, seed, sample))
        choices_BN[row] = torch.rand(count, generator=generator, dtype=torch.float64)
    return choices_BN.to(device)


def _nothing_dropped(rows: Sequence[int]) -> Tensor:
    return torch.zeros(len(rows), dtype=torch.bool)


def _seed_of_part(draws: TokenDraws, chosen: slice) -> int:
    part = chosen.indices(len(draws.drop_B))
    whole = len(range(*part)) == len(draws.drop_B)
    return draws.dropout_seed if whole else seed_of("piece", draws.dropout_seed, *part)
