"""Loss on the validation split, always on the same rows with the same draws, so that two numbers can be compared."""

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from elf.pipeline.errors import Failed
from elf.stages.feeding import Recipe
from elf.stages.latents import LatentRows
from elf.stages.model.config import LEVELS
from elf.stages.model.draws import seed_of
from elf.stages.tally import Tally
from elf.stages.team import Team
from elf.stages.train_settings import Heldout as HeldoutSettings

if TYPE_CHECKING:
    from elf.stages.model.objective import Loss
    from elf.stages.objectives import Goal


class Heldout:
    """Rows of ``split``, another than ``recipe``'s, in batches of the recipe's size, ``at_once`` rows of a process
    at a time (all where it is absent)."""

    def __init__(
        self,
        recipe: Recipe,
        split: LatentRows,
        settings: HeldoutSettings,
        team: Team,
        *,
        at_once: int | None = None,
    ) -> None:
        self._recipe = replace(recipe, latents=split, seed=seed_of("heldout", recipe.seed))
        self._every, self._rows = settings.every, min(settings.rows, split.rows)
        self._team = team
        self._at_once = at_once or len(recipe.places)
        self._buffer = split.make_buffer(self._at_once)

    def due(self, step: int) -> bool:
        """Whether to measure after ``step`` steps."""
        return step % self._every == 0

    @torch.no_grad()
    def measure(self, objective: "Goal") -> Tally:
        """The losses of all rows."""
        levels_4K = torch.zeros(4, LEVELS, dtype=torch.float64, device=self._recipe.device)
        for number, start in enumerate(range(0, self._rows, self._recipe.batch)):
            places = self._recipe.places
            end = min(places.stop, self._rows - start)
            for first in range(places.start, end, self._at_once):
                some = range(first, min(first + self._at_once, end))
                fed = replace(self._recipe, places=some).prepare(number, self._buffer)
                batch = self._recipe.latents.normalise(fed.raw, self._recipe.device)
                loss: Loss = objective(batch, fed.draws)
                levels_4K += loss.levels_4K
        found = objective.tally.of(self._team.total([levels_4K]))
        if not math.isfinite(found.loss):
            raise Failed(
                f"The held-out loss is {found.loss}: the validation split's latents hold numbers that are not finite, "
                "or the weights are too large for this precision. Look at the store (`elf cache verify`), or train in "
                "float32."
            )
        return found


def open_heldout(
    recipe: Recipe,
    split: LatentRows | None,
    settings: HeldoutSettings | None,
    team: Team,
    *,
    at_once: int | None,
) -> Heldout | None:
    """None where there is no such split, or nobody asked for it."""
    if split is None or settings is None:
        return None
    return Heldout(recipe, split, settings, team, at_once=at_once)
