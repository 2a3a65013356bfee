"""What steps are expected to cost, and what that comes to: sums that say how much of them is not known."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from elf.cache.store import Artifact
from elf.pipeline.plan import Planned
from elf.pipeline.wording import DASH


@dataclass(frozen=True, slots=True)
class Estimate:
    """A step's expected cost; None where nothing is known. ``found`` says it is there already, at no cost.

    ``sure``: its bytes follow from settings and from what is there, not from a hint. ``scratch``: bytes besides that
    are taken while it is built, and given back.
    """

    planned: Planned
    found: Artifact | None
    rows: int | None
    tokens: int | None
    bytes: int | None
    seconds: float | None
    sure: bool = False
    scratch: int = 0


@dataclass(frozen=True, slots=True)
class Total:
    """A sum of what is known, and the names of the steps of which it is not: then the whole is more than ``known``."""

    known: float = 0
    unknown: tuple[str, ...] = ()

    def __add__(self, other: "Total") -> "Total":
        return Total(self.known + other.known, (*self.unknown, *other.unknown))

    def told(self, text: Callable[[float], str]) -> str:
        """``~5 min``; ``more than ~5 min`` where something is not known, ``not known`` where nothing is; a dash for
        nothing at all. ``text`` writes a number."""
        if not self.unknown:
            return text(self.known) if self.known else DASH
        return f"more than {text(self.known)}" if self.known else "not known"

    def cell(self, text: Callable[[float], str]) -> str:
        """As ``told``, short enough for a table: ``> ~5 min``, ``?``."""
        if not self.unknown:
            return text(self.known) if self.known else DASH
        return f"> {text(self.known)}" if self.known else "?"

    def lacking(self, what: str) -> str:
        """``; the time of encode, train is not known``, to be set behind a sum: which steps, of many how many and the
        first of them. Empty where all is known."""
        if not self.unknown:
            return ""
        names = list(dict.fromkeys(self.unknown))
        first = ", ".join(names[:NAMED]) + (", …" if len(names) > NAMED else "")
        few = len(self.unknown) == len(names) <= NAMED
        return f"; the {what} of {first if few else f'{len(self.unknown)} steps ({first})'} is not known"

    def plain(self, name: str) -> dict[str, float | list[str] | None]:
        """For JSON: the sum, null where it is not known, and what it is at least and which steps it lacks."""
        return {
            name: None if self.unknown else self.known,
            f"{name}_at_least": self.known,
            f"{name}_unknown": list(dict.fromkeys(self.unknown)),
        }


NAMED = 3
"""Steps of unknown cost that are named; of more, the first ones and their number."""


def sum_of(costs: Iterable[tuple[str, float | None]]) -> Total:
    """Of costs by the names of their steps, None where one is not known."""
    told = list(costs)
    known = sum(cost for _, cost in told if cost is not None)
    return Total(known, tuple(name for name, cost in told if cost is None))


def total_bytes(estimates: Iterable[Estimate]) -> Total:
    """Bytes still to be written, each key once."""
    return sum_of((name, each.bytes) for name, each in _missing(estimates))


def total_seconds(estimates: Iterable[Estimate]) -> Total:
    """Seconds still to be spent, each key once."""
    return sum_of((name, each.seconds) for name, each in _missing(estimates))


def _missing(estimates: Iterable[Estimate]) -> list[tuple[str, Estimate]]:
    keyed = {each.planned.key: each for each in estimates if each.found is None}
    return [(each.planned.step.name, each) for each in keyed.values()]
