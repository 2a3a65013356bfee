"""One thread that stays ahead of training: reads the rows of coming steps and draws their random numbers.

Which rows and which draws a step gets is a function of (seed, step, place in the global batch) alone; a process
makes those of its own places. No latent crosses a process boundary.
"""

import queue
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from elf.cache.layout import Array
from elf.stages.latents import LatentRows, RawBatch
from elf.stages.model.config import ObjectiveConfig
from elf.stages.model.draws import Draws, draw
from elf.stages.order import Integers, Order

BUFFERS = 3
"""One that is trained on, one that is ready, one that is being filled."""


@dataclass(frozen=True, slots=True, eq=False)
class Fed:
    """What one process trains on in step ``step`` (from 0). ``rows`` are those of the whole global batch;
    ``raw`` lies in a buffer that is used again once the next step is asked for."""

    step: int
    rows: Integers
    raw: RawBatch
    draws: Draws


@dataclass(frozen=True, slots=True)
class Recipe:
    """How the rows and draws of any step are found. ``places`` are this process's in the global batch."""

    latents: LatentRows
    seed: int
    batch: int
    places: range
    objective: ObjectiveConfig
    device: torch.device

    def rows(self, step: int) -> Integers:
        """Rows of the whole global batch."""
        return Order(self.latents.rows, self.seed).batch(step, self.batch)

    def prepare(self, step: int, buffer: Array) -> Fed:
        """Read and draw what a step needs."""
        rows = self.rows(step)
        draws = self.draws(step, self.places)
        mine = rows[self.places.start : self.places.stop]
        return Fed(step, rows, self.latents.read(mine, draws.drop_B, buffer), draws)

    def draws(self, step: int, places: Sequence[int]) -> Draws:
        """The random numbers of the given places of a step's global batch."""
        return draw(
            self.seed,
            step,
            places,
            length=self.latents.length,
            width=self.latents.width,
            objective=self.objective,
            device=self.device,
        )


class Feed:
    """Iterates over what the steps of ``steps`` need, in order; use it in a ``with``. An error of the thread is
    raised where its step would have come."""

    def __init__(self, recipe: Recipe, steps: range) -> None:
        self._recipe, self._steps = recipe, steps
        self._free: queue.SimpleQueue[Array | None] = queue.SimpleQueue()
        self._ready: queue.SimpleQueue[tuple[Array, Fed] | BaseException | None] = queue.SimpleQueue()
        for _ in range(BUFFERS):
            self._free.put(recipe.latents.make_buffer(len(recipe.places)))
        self._thread = threading.Thread(target=self._work, name="feed", daemon=True)

    def __enter__(self) -> Iterator[Fed]:
        self._thread.start()
        return self._iterate()

    def __exit__(self, *exc: object) -> None:
        self._free.put(None)  # the thread comes to it after the free buffers before it
        self._thread.join()

    def _iterate(self) -> Iterator[Fed]:
        while True:
            item = self._ready.get()
            if item is None:
                return
            if isinstance(item, BaseException):
                raise item
            yield item[1]
            self._free.put(item[0])

    def _work(self) -> None:
        try:
            places = slice(self._recipe.places.start, self._recipe.places.stop)
            for step in self._steps:
                buffer = self._free.get()
                if buffer is None:
                    return
                if step + 1 in self._steps:
                    self._recipe.latents.willneed(self._recipe.rows(step + 1)[places])
                self._ready.put((buffer, self._recipe.prepare(step, buffer)))
            self._ready.put(None)
        except BaseException as error:
            self._ready.put(error)
