"""What the variants of a sweep cost: each what it alone needs, and once what several of them do."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from elf.flows.priced import Priced
from elf.flows.sweep_running import Ended
from elf.flows.sweeping import Members
from elf.flows.told_outcomes import How, together
from elf.pipeline.wording import about_bytes, about_seconds, bytes_text, seconds_text, size_of
from elf.stages.spending import Spending
from elf.stages.totals import Total, sum_of

SHARED = ""
"""Whose steps those are that several variants have."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Steps of one variant that no other has. ``builds`` of them are to be built, or were by this sweep, in ``spent``
    seconds; ``pulls`` came from the remote, the rest was there or came to be there by others."""

    name: str
    steps: int
    builds: int
    pulls: int
    seconds: Total
    spent: Total
    bytes: Total

    @property
    def reused(self) -> int:
        """Steps that were, or are, there without being built or pulled."""
        return self.steps - self.builds - self.pulls

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        counts = {"steps": self.steps, "builds": self.builds, "pulls": self.pulls, "reused": self.reused}
        sums = {**self.seconds.plain("seconds"), **self.spent.plain("spent"), **self.bytes.plain("bytes")}
        return {"name": self.name or None, **counts, **sums}


@dataclass(frozen=True, slots=True)
class Costs:
    """``rows``: what is shared first. ``apart``: seconds if every variant built all it needs for itself."""

    rows: tuple[Cost, ...]
    apart: Total

    @property
    def builds(self) -> int:
        return sum(row.builds for row in self.rows)

    @property
    def seconds(self) -> Total:
        return sum((row.seconds for row in self.rows), Total())

    @property
    def spent(self) -> Total:
        return sum((row.spent for row in self.rows), Total())

    @property
    def bytes(self) -> Total:
        return sum((row.bytes for row in self.rows), Total())

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "rows": [row.plain() for row in self.rows],
            "builds": self.builds,
            **self.seconds.plain("seconds"),
            **self.apart.plain("seconds_without_sharing"),
            **self.spent.plain("spent"),
            **self.bytes.plain("bytes"),
        }


@dataclass(frozen=True, slots=True)
class _Share:
    """A step of some variant, and what it costs or did; ``how`` it comes to be there."""

    name: str
    key: str
    how: How
    seconds: float | None
    bytes: float | None


_HOW: Mapping[str, How] = {"build": "built", "remote": "pulled"}


def price_of(sweep: Members, priced: Mapping[str, Priced]) -> Costs:
    """Of the steps that a variant needs, as they are priced; those that are there cost nothing."""
    steps: dict[str, list[_Share]] = {}
    for variant, each in priced.items():
        steps[variant] = []
        for made, state in each.rows:
            if state == "skip":
                continue
            missing = state == "build"
            seconds, size = (made.seconds, made.bytes) if missing else (0.0, 0)
            planned, how = made.planned, _HOW.get(state, "reused")
            steps[variant].append(_Share(planned.step.name, planned.key, how, seconds, size))
    return _costs(sweep, steps)


def cost_of(sweep: Members, ended: Sequence[Ended]) -> Costs:
    """Of what the variants that ended have in the store, as its manifests tell it; who built it as all of them told
    it."""
    how = together(each.outcomes for each in ended)
    steps = {each.member.variant: list(_stored(sweep, each, how)) for each in ended}
    return _costs(sweep, steps)


def _stored(sweep: Members, each: Ended, how: Mapping[str, How]) -> Iterable[_Share]:
    for planned in sweep.steps(each.member):
        found = each.member.request.store.find(*planned.place)
        if found is not None:
            done, seconds = how.get(planned.key, "reused"), found.manifest.provenance.seconds
            yield _Share(planned.step.name, planned.key, done, seconds, size_of(found))


def _costs(sweep: Members, steps: Mapping[str, Sequence[_Share]]) -> Costs:
    shared = sweep.shared()
    common = {each.key: each for some in steps.values() for each in some if each.key in shared}
    own = {
        variant: list({each.key: each for each in some if each.key not in shared}.values())
        for variant, some in steps.items()
    }
    rows = (_row(SHARED, list(common.values())), *(_row(variant, some) for variant, some in own.items()))
    whole = (list({each.key: each for each in some}.values()) for some in steps.values())
    return Costs(rows, sum_of((each.name, each.seconds) for some in whole for each in some))


def _row(name: str, steps: Sequence[_Share]) -> Cost:
    built = [each for each in steps if each.how == "built"]
    return Cost(
        name,
        len(steps),
        len(built),
        sum(each.how == "pulled" for each in steps),
        sum_of((each.name, each.seconds) for each in steps),
        sum_of((each.name, each.seconds) for each in built),
        sum_of((each.name, each.bytes) for each in steps),
    )


PLANNED = ("its steps", "to build", "time", "bytes")
DONE = ("its steps", "built now", "reused", "time", "built in", "bytes")


def cells_of(row: Cost, *, planned: bool) -> tuple[str, ...]:
    """A row under ``PLANNED``, or under ``DONE``; without its name."""
    if planned:
        return str(row.steps), str(row.builds), row.seconds.cell(about_seconds), row.bytes.cell(about_bytes)
    reused = f"{row.reused + row.pulls}" + (f" ({row.pulls} pulled)" if row.pulls else "")
    spent = row.spent.cell(seconds_text)
    return (
        str(row.steps),
        str(row.builds),
        reused,
        row.seconds.cell(seconds_text),
        spent,
        row.bytes.cell(bytes_text),
    )


def spending_of(costs: Costs) -> Spending:
    """For the page of a sweep."""
    built = (
        f"this sweep built for {costs.spent.told(seconds_text)}"
        if costs.builds
        else "this sweep built nothing"
    )
    words = (
        f"{costs.seconds.told(seconds_text)} and {costs.bytes.told(bytes_text)} in all; {built}. Without sharing all "
        f"variants come to {costs.apart.told(seconds_text)}."
    )
    rows = tuple((row.name or "(shared)", *cells_of(row, planned=False)) for row in costs.rows)
    return Spending(("variant", *DONE), rows, words)
