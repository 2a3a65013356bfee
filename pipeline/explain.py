"""Why a step is a hit or a miss: the wanted identity beside the nearest one the store has."""

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from elf.cache.errors import Damaged
from elf.cache.manifest import JSON, Fingerprint, short
from elf.cache.store import Artifact, Store
from elf.pipeline.descriptions import read_description
from elf.pipeline.plan import Plan, Planned, payload_of
from elf.pipeline.section import differences
from elf.pipeline.wording import seconds_text

UNKNOWN = 100
"""How far an input lies that is of another stage, or gone."""
UNLIKE = 8
"""Differing settings from which on what shares no input, however far up, is no help to compare with."""


@dataclass(frozen=True, slots=True)
class Change:
    """One setting that differs: where it stands in the configuration, what the store has, what is wanted."""

    place: str
    old: JSON
    new: JSON

    def __str__(self) -> str:
        return f"{self.place}: {_show(self.old)} → {_show(self.new)}"


@dataclass(frozen=True, slots=True)
class Explanation:
    """``found`` for a hit; else the nearest artifact, if any, and what differs from it.

    ``upstream`` explains, by role, the inputs whose keys differ; ``spared``: no step of the plan needs it built;
    ``idle``: one would, but is there.
    """

    planned: Planned
    found: Artifact | None
    nearest: Artifact | None
    changes: tuple[Change, ...]
    upstream: tuple["Explanation", ...]
    spared: bool = False
    idle: bool = False
    unlike: bool = False
    """Whether the nearest is that of another experiment altogether."""

    @property
    def state(self) -> Literal["hit", "skip", "build"]:
        """What a run would do."""
        return "hit" if self.found is not None else "skip" if self.spared or self.idle else "build"

    def lines(self) -> Iterator[str]:
        """The explanation as text: what differs, and for what differs upstream the way from there to here."""
        step = self.planned.step
        title = f"{step.name}  {short(self.planned.key)}"
        if self.found is not None:
            made = self.found.manifest.provenance
            yield f"{title}  hit: built {_minute(made.started)} on {made.host} in {seconds_text(made.seconds)}"
            return
        if self.spared:
            yield f"{title}  skip: what takes it as an input makes what it needs of it, or does without"
            return
        title += "  missing, and not needed by what is there:" if self.idle else "  build:"
        if self.nearest is None:
            yield f"{title} no other {step.spec.name} of its kind is stored"
            return
        made = self.nearest.manifest
        if self.unlike:
            differing = sum(1 for _ in self.causes())
            yield (
                f"{title} nothing like it is stored; the nearest, {short(made.fingerprint)} of "
                f"{_minute(made.provenance.started)}, shares no input with it and differs in {differing} settings"
            )
            return
        yield f"{title} nearest is {short(made.fingerprint)} of {_minute(made.provenance.started)}"
        for change, way in self.causes():
            yield f"  {change}" if len(way) == 1 else f"  {change}  ({' → '.join(way)})"

    def causes(self) -> Iterator[tuple[Change, tuple[str, ...]]]:
        """Every changed setting once, nearest steps first, with the names of the steps from it to this one."""
        waiting: list[tuple[Explanation, tuple[str, ...]]] = [(self, ())]
        seen: set[str] = set()
        for told, below in waiting:
            way = (told.planned.step.name, *below)
            for change in told.changes:
                if str(change) not in seen:
                    seen.add(str(change))
                    yield change, way
            waiting += [(cause, way) for cause in told.upstream]


def explain(plan: Plan, name: str, store: Store) -> Explanation:
    """Why the step ``name`` is a hit or must be built, following changed inputs upstream."""
    return Explainer(plan, store, plan.names()).explain(name)


class Explainer:
    """Explains steps of one plan, of which a run would visit ``wanted``; each manifest is read once."""

    def __init__(self, plan: Plan, store: Store, wanted: Collection[str]) -> None:
        self._plan, self._store, self._wanted = plan, store, wanted
        self._spared = plan.spared()
        self._place = {name: place for place, name in enumerate(plan.names())}
        self._found: dict[tuple[str, str], Artifact | None] = {}
        self._others: dict[str, list[Artifact]] = {}
        self._told: dict[tuple[str, str], Explanation] = {}
        self._far: dict[tuple[str, str], int] = {}

    def explain(self, name: str) -> Explanation:
        """Why the step ``name`` is a hit or must be built."""
        planned = self._plan[name]
        found = self._find(*planned.place)
        if found is not None:
            return Explanation(planned, found, None, (), ())
        nearest = self._nearest(planned)
        told = (
            Explanation(planned, None, None, (), ()) if nearest is None else self._against(planned, nearest)
        )
        if nearest is not None and not self._shares(planned, nearest):
            told = replace(told, unlike=sum(1 for _ in told.causes()) > UNLIKE)
        spared = name in self._spared
        return replace(told, spared=spared, idle=not spared and name not in self._wanted)

    def _against(self, planned: Planned, old: Artifact) -> Explanation:
        """What separates the wanted step from ``old``."""
        pair = planned.step.name, old.manifest.fingerprint
        if pair not in self._told:
            changes = tuple(
                Change(_place(planned, path), before, after)
                for path, before, after in differences(payload_of(old.manifest), dict(planned.payload))
                if not path.startswith("inputs.")
            )
            upstream: list[Explanation] = []
            for role, source, before, earlier in self._changed(planned, old):
                if earlier is None:
                    words = f"another {source.step.spec.name} ({short(before)})" if before else "(absent)"
                    changes += (Change(f"input {role}", words, short(source.key)),)
                else:
                    upstream.append(self._against(source, earlier))
            self._told[pair] = Explanation(planned, None, old, changes, tuple(upstream))
        return self._told[pair]

    def _changed(
        self, planned: Planned, old: Artifact
    ) -> Iterator[tuple[str, Planned, str | None, Artifact | None]]:
        """Role, wanted step, earlier key and earlier artifact of each input that is another than that of ``old``."""
        sources = planned.step.inputs
        for role in sorted(sources, key=lambda role: self._place[sources[role]]):
            key = planned.input_keys[role]
            before = old.manifest.inputs.get(role)
            if before != key:
                source = self._plan[sources[role]]
                yield role, source, before, self._earlier(source, old, role, before) if before else None

    def _shares(self, planned: Planned, old: Artifact) -> bool:
        """Whether one and the same artifact lies above both."""
        changed = {role: earlier for role, _, _, earlier in self._changed(planned, old)}
        return len(changed) < len(planned.step.inputs) or any(
            earlier is not None and self._shares(self._plan[planned.step.inputs[role]], earlier)
            for role, earlier in changed.items()
        )

    def _earlier(self, source: Planned, user: Artifact, role: str, key: str) -> Artifact | None:
        """The input that ``user`` was made from, or what is known of it where it was never built."""
        found = self._find(source.step.spec.name, key)
        described = None if found is not None else read_description(user.path, role)
        if described is None or (described.stage, described.fingerprint) != (source.step.spec.name, key):
            return found
        return Artifact(user.path, described)

    def _nearest(self, planned: Planned) -> Artifact | None:
        """The finished artifact of this stage that differs in the fewest settings, upstream ones included; the
        youngest of equals."""
        alike = [
            other
            for other in self._of_stage(planned.step.spec.name)
            if other.manifest.inputs.keys() == planned.input_keys.keys()
        ]
        if not planned.input_keys:  # what nothing is made of is told apart by what is made of it
            alike = [other for other in alike if self._serves_alike(planned, other)]
        return min(
            alike, key=lambda other: (self._distance(planned, other), _reversed_time(other)), default=None
        )

    def _serves_alike(self, planned: Planned, other: Artifact) -> bool:
        """Whether something stored took ``other`` in a role that the plan has for the step."""
        key, name = other.manifest.fingerprint, planned.step.name
        roles = {
            (user.step.spec.name, role)
            for user in self._plan
            for role, source in user.step.inputs.items()
            if source == name
        }
        return not roles or any(
            user.manifest.inputs.get(role) == key for stage, role in roles for user in self._of_stage(stage)
        )

    def _of_stage(self, stage: str) -> list[Artifact]:
        """Every artifact of a stage that can be read."""
        if stage not in self._others:
            self._others[stage] = list(self._store.artifacts(stage, on_damaged=lambda fault: None))
        return self._others[stage]

    def _distance(self, planned: Planned, other: Artifact) -> int:
        """Differing settings; an input that cannot be followed counts as many."""
        pair = planned.step.name, other.manifest.fingerprint
        if pair not in self._far:
            differing = differences(payload_of(other.manifest), dict(planned.payload))
            own = sum(1 for path, _, _ in differing if not path.startswith("inputs."))
            self._far[pair] = own + sum(
                UNKNOWN if earlier is None else self._distance(source, earlier)
                for _, source, _, earlier in self._changed(planned, other)
            )
        return self._far[pair]

    def _find(self, stage: str, key: str) -> Artifact | None:
        pair = stage, key
        if pair not in self._found:
            try:
                self._found[pair] = self._store.find(stage, Fingerprint(key))
            except Damaged:
                self._found[pair] = None
        return self._found[pair]


def _place(planned: Planned, path: str) -> str:
    inside = path.removeprefix("identity.")
    return planned.step.place_of(inside) if inside != path else f"{planned.step.spec.name} {path}"


def _reversed_time(artifact: Artifact) -> tuple[int, ...]:
    return tuple(-ord(letter) for letter in artifact.manifest.provenance.started)


def _minute(started: str) -> str:
    return started[:16].replace("T", " ")


def _show(value: JSON) -> str:
    return "(absent)" if value == "(absent)" else json.dumps(value, ensure_ascii=False)
