"""Count, mean, deviation and range of stored numbers, the same however the rows were batched or spread over workers.

Sums are float64. Each row is summed on its own, rows and shards are joined by ``math.fsum``, whose result does not
depend on the order.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from elf.pipeline.errors import Failed


@dataclass(frozen=True, slots=True)
class Moments:
    """Of ``count`` numbers: their sum, the sum of their squares, the lowest and the highest."""

    count: int
    total: float
    squares: float
    low: float
    high: float

    @property
    def mean(self) -> float:
        return self.total / self.count

    @property
    def std(self) -> float:
        """Population deviation; exactly 0 where all numbers are equal."""
        if self.low == self.high:
            return 0.0
        return math.sqrt(max(self.squares / self.count - self.mean**2, 0.0))

    def plain(self) -> dict[str, int | float]:
        """As JSON; ``Moments(**plain)`` is the way back, to the last bit."""
        return asdict(self)


def moments_of(values: np.ndarray) -> Moments:
    """Moments of float64 ``values``."""
    flat = np.ascontiguousarray(values, dtype=np.float64).reshape(-1)
    if not flat.size:
        return NOTHING
    return Moments(
        flat.size,
        float(flat.sum()),
        float(np.square(flat).sum()),
        float(flat.min()),
        float(flat.max()),
    )


def combine(parts: Iterable[Moments]) -> Moments:
    """Moments of all parts together."""
    known: Sequence[Moments] = [part for part in parts if part.count]
    if not known:
        return NOTHING
    return Moments(
        sum(part.count for part in known),
        math.fsum(part.total for part in known),
        math.fsum(part.squares for part in known),
        min(part.low for part in known),
        max(part.high for part in known),
    )


def seen_in_training(views: Mapping[str, Moments]) -> Moments:
    """Moments of what training sees most: of all views but ``target``, whose place the kept conditions' view takes."""
    return combine([moments for name, moments in views.items() if name != "target"] or views.values())


def counted(moments: Moments) -> Moments:
    """The moments of rows, if these hold any token. Raises Failed."""
    if not moments.count:
        raise Failed(
            "The rows hold no token at all, only padding, so there is nothing to learn from. Bring text with words "
            "(data.train)."
        )
    return moments


NOTHING = Moments(0, 0.0, 0.0, 0.0, 0.0)
