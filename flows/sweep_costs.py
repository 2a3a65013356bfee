"""What the variants of a sweep cost: each what it alone needs, and once what several of them do."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from elf.flows.priced import Priced
from elf.flows.sweeping import Member, Members
from elf.pipeline.wording import size_of

SHARED = ""
"""Whose steps those are that several variants have."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Steps of one variant that no other has; ``builds`` of them are to be built, or were."""

    name: str
    steps: int
    builds: int
    seconds: float
    bytes: float


@dataclass(frozen=True, slots=True)
class Costs:
    """``rows``: what is shared first. ``apart``: seconds if every variant built all it needs for itself."""

    rows: tuple[Cost, ...]
    apart: float

    @property
    def builds(self) -> int:
        return sum(row.builds for row in self.rows)

    @property
    def seconds(self) -> float:
        return sum(row.seconds for row in self.rows)

    @property
    def bytes(self) -> float:
        return sum(row.bytes for row in self.rows)

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "rows": [asdict(row) | {"name": row.name or None} for row in self.rows],
            "builds": self.builds,
            "seconds": self.seconds,
            "seconds_without_sharing": self.apart,
            "bytes": self.bytes,
        }


@dataclass(frozen=True, slots=True)
class _Share:
    """A step of some variant."""

    key: str
    builds: bool
    seconds: float
    bytes: float


def price_of(sweep: Members, priced: Mapping[str, Priced]) -> Costs:
    """Of the steps that are missing, as they are priced by variant."""
    steps = {
        variant: [
            _Share(
                row.estimate.planned.key,
                row.state == "build",
                (row.estimate.seconds or 0.0) if row.state == "build" else 0.0,
                (row.estimate.bytes or 0) if row.state == "build" else 0,
            )
            for row in each.rows
        ]
        for variant, each in priced.items()
    }
    return _costs(sweep, steps)


def cost_of(sweep: Members, members: Sequence[Member], *, before: Collection[str]) -> Costs:
    """Of what lies in the store, as its manifests tell it; built is what was not there ``before``."""
    steps = {member.variant: list(_stored(member, before)) for member in members}
    return _costs(sweep, steps)


def _stored(member: Member, before: Collection[str]) -> Iterable[_Share]:
    for planned in member.request.plan:
        found = member.request.store.find(*planned.place)
        if found is not None:
            new = planned.key not in before
            yield _Share(planned.key, new, found.manifest.provenance.seconds, size_of(found))


def _costs(sweep: Members, steps: Mapping[str, Sequence[_Share]]) -> Costs:
    shared = sweep.shared()
    common = {each.key: each for some in steps.values() for each in some if each.key in shared}
    own = {
        variant: list({each.key: each for each in some if each.key not in shared}.values())
        for variant, some in steps.items()
    }
    rows = (_row(SHARED, list(common.values())), *(_row(variant, some) for variant, some in own.items()))
    whole = (list({each.key: each for each in some}.values()) for some in steps.values())
    return Costs(rows, sum(each.seconds for some in whole for each in some))


def _row(name: str, steps: Sequence[_Share]) -> Cost:
    return Cost(
        name,
        len(steps),
        sum(each.builds for each in steps),
        sum(each.seconds for each in steps),
        sum(each.bytes for each in steps),
    )
