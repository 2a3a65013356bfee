"""One thread that stays ahead of training: reads the rows of coming steps and draws their random numbers.

Which rows and which draws a step gets is a function of (seed, step, place in the global batch) alone; a process
makes those of its own places. No latent crosses a process boundary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from elf.cache.layout import Array
from elf.cache.prefetch import BUFFERS, Ahead
from elf.stages.latents import LatentRows, RawBatch
from elf.stages.model.config import ObjectiveConfig
from elf.stages.model.draws import draw, draw_drops
from elf.stages.order import Integers, Order


class Drawing(Protocol):
    """How a step's random numbers come of (seed, step, places): ``draw`` and its kin. Whatever they are, they have a
    ``drop_B`` and can ``take`` those of some of the rows."""

    def __call__(
        self,
        seed: int,
        step: int,
        rows: Sequence[int],
        /,
        *,
        length: int,
        width: int,
        objective: ObjectiveConfig,
        device: torch.device,
    ) -> Any: ...


@dataclass(frozen=True, slots=True, eq=False)
class Fed:
    """What one process trains on in step ``step`` (from 0). ``rows`` are those of the whole global batch;
    ``raw`` lies in a buffer that is used again once the next step is asked for; ``draws`` are what the recipe draws."""

    step: int
    rows: Integers
    raw: RawBatch
    draws: Any


@dataclass(frozen=True, slots=True)
class Recipe:
    """How the rows and draws of any step are found. ``places`` are this process's in the global batch."""

    latents: LatentRows
    seed: int
    batch: int
    places: range
    objective: ObjectiveConfig
    device: torch.device
    drawing: Drawing = draw
    width: int | None = None
    """Of the noise; that of the latents where absent."""

    def rows(self, step: int) -> Integers:
        """Rows of the whole global batch."""
        return Order(self.latents.rows, self.seed).batch(step, self.batch)

    def mine(self, step: int) -> tuple[Integers, torch.Tensor]:
        """Rows of this process in a step, and whose condition is dropped: known without reading or drawing more."""
        rows = self.rows(step)[self.places.start : self.places.stop]
        return rows, draw_drops(self.seed, step, self.places, objective=self.objective)

    def announce(self, step: int) -> None:
        """Have the rows of a step that comes soon read from the disk; returns at once."""
        self.latents.willneed(*self.mine(step))

    def prepare(self, step: int, buffer: Array) -> Fed:
        """Read and draw what a step needs."""
        rows = self.rows(step)
        draws = self.draws(step, self.places)
        mine = rows[self.places.start : self.places.stop]
        return Fed(step, rows, self.latents.read(mine, draws.drop_B, buffer), draws)

    def draws(self, step: int, places: Sequence[int]) -> Any:
        """The random numbers of the given places of a step's global batch."""
        return self.drawing(
            self.seed,
            step,
            places,
            length=self.latents.length,
            width=self.latents.width if self.width is None else self.width,
            objective=self.objective,
            device=self.device,
        )


class Feed(Ahead[int, Fed]):
    """Iterates over what the steps of ``steps`` need, in order; use it in a ``with``. An error of the thread is
    raised where its step would have come."""

    def __init__(self, recipe: Recipe, steps: range) -> None:
        pinned = recipe.device.type == "cuda"
        buffers = [recipe.latents.make_buffer(len(recipe.places), pinned=pinned) for _ in range(BUFFERS)]
        self._states = recipe.latents.states
        super().__init__(steps, recipe.prepare, announce=recipe.announce, buffers=buffers, name="feed")

    def close(self) -> None:
        """Stop the thread, and what it waits for; nothing comes any more."""
        self._states.stop()
        super().close()
