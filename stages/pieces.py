"""One optimiser step in pieces, one after another: where its rows do not fit into memory at once, or where the mean
is to be taken group by group.

With ``train.accumulate`` G, place p of the global batch is of group p % G, whoever holds it, and the step's loss is
the mean over the groups of Σ error / Σ units that count of each (paper's programs; G = 1 is the mean over all units).
A unit is a position that counts, of a distillation a row. A group is computed ``compute.train.batch`` rows at a time,
which changes rounding and nothing else.
"""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from elf.stages.feeding import Fed
from elf.stages.latents import RawBatch
from elf.stages.model.config import LEVELS
from elf.stages.model.objective import Batch, Loss
from elf.stages.team import Team


@dataclass(frozen=True, slots=True)
class Piece:
    """``chosen`` of this process's rows, all of one group."""

    group: int
    chosen: slice
    last: bool


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """Of this process's rows in one step: ``levels_4K``, the losses by noise level as ``Loss`` has them, and
    ``error_B``, what each row adds."""

    levels_4K: Tensor
    error_B: Tensor


class Pieces:
    """How the steps of a run are cut; ``at_once`` rows at a time, all where it is absent."""

    def __init__(self, places: range, *, groups: int, at_once: int | None, team: Team) -> None:
        self._groups, self._team = groups, team
        self._rows = len(places)
        cut = [
            (group, chosen) for group in range(groups) for chosen in _slices(places, group, groups, at_once)
        ]
        self.pieces = [Piece(*piece, last=piece is cut[-1]) for piece in cut]

    def add_gradients(
        self,
        module: nn.Module,
        fed: Fed,
        normalise: Callable[[RawBatch, torch.device], Batch],
        counted_B: Tensor,
    ) -> Measured:
        """Add the gradients of the step's loss to the parameters of ``module``, which maps a batch and its draws to
        a Loss; with several processes, to the mean over them. ``counted_B``: units of each row."""
        device = self._team.device
        weights = self._weights(counted_B)
        levels_4K = torch.zeros(4, LEVELS, dtype=torch.float64, device=device)
        error_B = torch.zeros(self._rows, device=device)
        for piece in self.pieces:
            batch = normalise(fed.raw.take(piece.chosen), device)
            # Processes exchange gradients once a step, with the last piece.
            with nullcontext() if piece.last else self._team.apart(module):
                local: Loss = module(batch, fed.draws.take(piece.chosen))
                (local.sum * weights[piece.group]).backward()
            levels_4K += local.levels_4K
            error_B[piece.chosen] = (local.ce_B + local.l2_B).float()
        return Measured(levels_4K, error_B)

    def _weights(self, counted_B: Tensor) -> list[float]:
        """By group: the share of its units in the step's loss; times processes, whose gradients are averaged."""
        counts = [0] * self._groups
        for piece in self.pieces:
            counts[piece.group] += int(counted_B[piece.chosen].sum())
        totals = self._team.total(counts)
        return [self._team.size / (self._groups * max(total, 1.0)) for total in totals]


def _slices(places: range, group: int, groups: int, at_once: int | None) -> Iterator[slice]:
    """The group's rows among this process's, ``at_once`` at a time."""
    first = (group - places.start) % groups
    stride = groups * (at_once or len(places))
    for start in range(first, len(places), stride):
        yield slice(start, min(start + stride, len(places)), groups)
