"""What steps are expected to cost, and what that comes to."""

from collections.abc import Iterable
from dataclasses import dataclass

from elf.cache.store import Artifact
from elf.pipeline.plan import Planned


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


def total_bytes(estimates: Iterable[Estimate]) -> int:
    """Bytes still to be written, each key once; steps of unknown size count as nothing."""
    missing = {each.planned.key: each.bytes or 0 for each in estimates if each.found is None}
    return sum(missing.values())


def total_seconds(estimates: Iterable[Estimate]) -> float:
    """Seconds still to be spent, each key once."""
    missing = {each.planned.key: each.seconds or 0.0 for each in estimates if each.found is None}
    return sum(missing.values())
