"""A plan: named instances of stages joined by their inputs, each with its key.

Keys are known before anything runs, because a key is made of settings and of the keys of inputs only.
"""

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from elf.cache.manifest import JSON, Fingerprint, Manifest, short
from elf.cache.uses import Place
from elf.pipeline.errors import Misconfigured
from elf.pipeline.section import Section, fingerprint, identity
from elf.pipeline.stage import Compute, StageSpec


class Tie(Enum):
    """What a step needs of one of its inputs. How it is tied changes no key."""

    BUILT = "built"
    """The artifact."""
    INLINE = "inline"
    """What the artifact would be made of: the step makes what it would hold for itself."""
    GLANCE = "glance"
    """Nothing: it looks at the artifact where it is there."""


@dataclass(frozen=True, slots=True)
class Step:
    """One named instance of a stage. ``inputs`` maps the stage's roles to names of other steps.

    ``ties`` says of a role what is needed of it, the artifact where it says nothing. ``prefix`` is where its section
    stands in the configuration (``train``, ``sample.0``), and ``places`` where single fields of it stand if elsewhere;
    messages name settings by these. ``forecast`` is what it is expected to cost, kept beside what it makes; like the
    ties it changes no key.
    """

    name: str
    spec: StageSpec[Any]
    section: Section
    inputs: Mapping[str, str] = field(default_factory=dict[str, str])
    compute: Compute = field(default_factory=Compute)
    prefix: str = ""
    places: Mapping[str, str] = field(default_factory=dict[str, str])
    ties: Mapping[str, Tie] = field(default_factory=dict[str, Tie])
    forecast: Mapping[str, JSON] = field(default_factory=dict[str, JSON])

    def tie(self, role: str) -> Tie:
        """What is needed of the input ``role``."""
        return self.ties.get(role, Tie.BUILT)

    def place_of(self, path: str) -> str:
        """Where the field ``path`` of this step's section stands in the configuration."""
        first, dot, rest = path.partition(".")
        if first in self.places:
            return self.places[first] + dot + rest
        return f"{self.prefix}.{path}" if self.prefix else path


@dataclass(frozen=True, slots=True)
class Planned:
    """A step with its key and the payload the key is the hash of."""

    step: Step
    key: Fingerprint
    payload: Mapping[str, JSON]
    input_keys: Mapping[str, Fingerprint]

    @property
    def place(self) -> Place:
        """Stage and key of its artifact."""
        return self.step.spec.name, self.key


class Plan:
    """Steps in an order in which each comes after its inputs."""

    def __init__(self, steps: Iterable[Step]) -> None:
        named: dict[str, Step] = {}
        for step in steps:
            if step.name in named:
                raise Misconfigured(
                    f"Two steps of the plan are called '{step.name}'; give one of them another name."
                )
            named[step.name] = step
        self._planned: dict[str, Planned] = {}
        for name in named:
            self._add(name, named, ())

    def _add(self, name: str, named: Mapping[str, Step], above: tuple[str, ...]) -> None:
        if name in self._planned:
            return
        if name in above:
            raise Misconfigured(f"The steps {' → '.join((*above, name))} wait for each other in a circle.")
        step = named[name]
        for role, source in step.inputs.items():
            if not step.spec.accepts(role):
                raise Misconfigured(
                    f"Step '{name}' has no input called '{role}'; it takes {step.spec.inputs}."
                )
            if source not in named:
                raise Misconfigured(
                    f"Step '{name}' wants '{source}' as its {role}, but the plan has no such step; add it."
                )
            self._add(source, named, (*above, name))
        missing = [role for role in step.spec.required() if role not in step.inputs]
        if missing:
            raise Misconfigured(
                f"Step '{name}' ({step.spec.name}) lacks its input {', '.join(missing)}; give it one."
            )
        keys = {role: self._planned[source].key for role, source in sorted(step.inputs.items())}
        payload = key_payload(step.spec, step.section, keys)
        self._planned[name] = Planned(step, fingerprint(payload), payload, keys)

    def __iter__(self) -> Iterator[Planned]:
        return iter(self._planned.values())

    def __getitem__(self, name: str) -> Planned:
        return self._planned[name]

    def __len__(self) -> int:
        return len(self._planned)

    def names(self) -> tuple[str, ...]:
        """Names of all steps, inputs first."""
        return tuple(self._planned)

    def select(self, wanted: str) -> tuple[str, ...]:
        """Names of the steps that ``wanted`` means: every instance of a stage, or one by its own name."""
        of_stage = tuple(planned.step.name for planned in self if planned.step.spec.name == wanted)
        if of_stage:
            return of_stage
        if wanted in self._planned:
            return (wanted,)
        known = sorted({planned.step.spec.name for planned in self} | set(self._planned))
        near = difflib.get_close_matches(wanted, known, n=1)
        hint = f" Did you mean '{near[0]}'?" if near else ""
        raise Misconfigured(
            f"There is no stage or step '{wanted}' in this plan.{hint} It has: {', '.join(known)}."
        )

    def select_all(self, wanted: Iterable[str]) -> set[str]:
        """Names of the steps that any of ``wanted`` means."""
        return {step for name in wanted for step in self.select(name)}

    def places(self) -> list[Place]:
        """Stage and key of every step."""
        return [planned.place for planned in self]

    def called(self) -> dict[str, str]:
        """Names of the steps by their keys."""
        return names_by_key((planned.step.name, planned.key) for planned in self)

    def leaves(self) -> tuple[str, ...]:
        """Steps that nobody takes as an input."""
        used = {source for planned in self for source in planned.step.inputs.values()}
        return tuple(name for name in self._planned if name not in used)

    def needs(self, name: str) -> tuple[str, ...]:
        """Steps whose artifacts must be there before ``name`` can be built."""
        step = self._planned[name].step
        found: dict[str, None] = {}
        for role, source in step.inputs.items():
            if step.tie(role) is Tie.BUILT:
                found[source] = None
            elif step.tie(role) is Tie.INLINE:
                found.update(dict.fromkeys(self._planned[source].step.inputs.values()))
        return tuple(found)

    def spared(self) -> frozenset[str]:
        """Steps that others name as an input, but none needs to be built."""
        needed = {source for name in self._planned for source in self.needs(name)}
        return frozenset(self._planned) - frozenset(self.leaves()) - needed

    def upstream(self, names: Iterable[str]) -> tuple[str, ...]:
        """``names`` and everything they are built from, inputs first."""
        seen: set[str] = set()
        waiting = list(names)
        while waiting:
            name = waiting.pop()
            if name not in seen:
                seen.add(name)
                waiting.extend(self._planned[name].step.inputs.values())
        return tuple(name for name in self._planned if name in seen)


def names_by_key(steps: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Of names with their keys: each key with its name, or its names, ``fetch-train, fetch-encoder``."""
    found: dict[str, list[str]] = {}
    for name, key in steps:
        found.setdefault(key, []).append(name)
    return {key: ", ".join(names) for key, names in found.items()}


def key_payload(spec: StageSpec[Any], section: Section, inputs: Mapping[str, Fingerprint]) -> dict[str, JSON]:
    """What a key is the hash of: stage, version, identity of the section, keys of the inputs."""
    return {
        "stage": spec.name,
        "version": spec.version,
        "identity": identity(section, spec.neutral),
        "inputs": dict(inputs),
    }


def payload_of(manifest: Manifest) -> dict[str, JSON]:
    """What the key of a finished artifact is the hash of."""
    return {
        "stage": manifest.stage,
        "version": manifest.version,
        "identity": manifest.identity,
        "inputs": dict(manifest.inputs),
    }


def key_fault(manifest: Manifest) -> str | None:
    """What is wrong if a manifest does not say what its key stands for."""
    if fingerprint(payload_of(manifest)) == manifest.fingerprint:
        return None
    return (
        f"The manifest of {manifest.stage} {short(manifest.fingerprint)} does not say what its key is the hash of: its "
        "stage, version, identity or inputs have changed since it was written."
    )
