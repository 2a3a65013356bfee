"""Why a step is a hit or a miss: the wanted identity beside the nearest one the store has."""

import json
from collections.abc import Iterator
from dataclasses import dataclass

from elf.cache.errors import Damaged
from elf.cache.manifest import JSON, Fingerprint, Manifest, short
from elf.cache.store import Artifact, Store
from elf.pipeline.plan import Plan, Planned
from elf.pipeline.section import differences


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

    ``upstream`` explains, by role, the inputs whose keys differ.
    """

    planned: Planned
    found: Artifact | None
    nearest: Artifact | None
    changes: tuple[Change, ...]
    upstream: tuple["Explanation", ...]

    def lines(self) -> Iterator[str]:
        """The explanation as text, indented under the step it is about."""
        step = self.planned.step
        title = f"{step.name}  {short(self.planned.key)}"
        if self.found is not None:
            made = self.found.manifest.provenance
            yield f"{title}  hit: built {made.started} on {made.host} in {made.seconds:.0f} s"
            return
        if self.nearest is None:
            yield f"{title}  build: the store holds no other {step.spec.name} of this kind"
            return
        made = self.nearest.manifest
        yield f"{title}  build: nearest is {short(made.fingerprint)} of {made.provenance.started}"
        for change in self.changes:
            yield f"  {change}"
        for cause in self.upstream:
            for line in cause.lines():
                yield f"  {line}"


def explain(plan: Plan, name: str, store: Store) -> Explanation:
    """Why the step ``name`` is a hit or must be built, following changed inputs upstream."""
    planned = plan[name]
    found = _find(store, planned.step.spec.name, planned.key)
    if found is not None:
        return Explanation(planned, found, None, (), ())
    nearest = _nearest(planned, store)
    if nearest is None:
        return Explanation(planned, None, None, (), ())
    return _against(plan, planned, nearest, store)


def _against(plan: Plan, planned: Planned, old: Artifact, store: Store) -> Explanation:
    """What separates the wanted step from ``old``."""
    changes = tuple(
        Change(_place(planned, path), before, after)
        for path, before, after in differences(_payload(old.manifest), dict(planned.payload))
        if not path.startswith("inputs.")
    )
    upstream: list[Explanation] = []
    for role, key in planned.input_keys.items():
        before = old.manifest.inputs.get(role)
        if before == key:
            continue
        source = plan[planned.step.inputs[role]]
        earlier = _find(store, source.step.spec.name, before) if before is not None else None
        if earlier is None:
            words = f"another {source.step.spec.name} ({short(before)})" if before else "(absent)"
            changes += (Change(f"input {role}", words, short(key)),)
        else:
            upstream.append(_against(plan, source, earlier, store))
    return Explanation(planned, None, old, changes, tuple(upstream))


def _place(planned: Planned, path: str) -> str:
    inside = path.removeprefix("identity.")
    return planned.step.place_of(inside) if inside != path else f"{planned.step.spec.name} {path}"


def _nearest(planned: Planned, store: Store) -> Artifact | None:
    """The finished artifact of this stage that differs in the fewest settings; the youngest of equals.

    A changed input counts less than a changed setting would hide: inputs are compared as one field each.
    """
    others = store.artifacts(planned.step.spec.name, on_damaged=lambda fault: None)
    candidates = [
        (_distance(planned, other), _reversed_time(other), other)
        for other in others
        if other.manifest.inputs.keys() == planned.input_keys.keys()
    ]
    return min(candidates, key=lambda each: each[:2])[2] if candidates else None


def _distance(planned: Planned, other: Artifact) -> int:
    return sum(1 for _ in differences(_payload(other.manifest), dict(planned.payload)))


def _reversed_time(artifact: Artifact) -> tuple[int, ...]:
    return tuple(-ord(letter) for letter in artifact.manifest.provenance.started)


def _payload(manifest: Manifest) -> dict[str, JSON]:
    return {
        "stage": manifest.stage,
        "version": manifest.version,
        "identity": manifest.identity,
        "inputs": dict(manifest.inputs),
    }


def _find(store: Store, stage: str, key: str) -> Artifact | None:
    try:
        return store.find(stage, Fingerprint(key))
    except Damaged:
        return None


def _show(value: JSON) -> str:
    return "(absent)" if value == "(absent)" else json.dumps(value, ensure_ascii=False)
