"""The rows of a table with what a store holds of them, found by key: whoever made it, and whatever run it was for."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from elf.cache.manifest import Fingerprint
from elf.cache.store import Artifact
from elf.flows.request import Request, load_request
from elf.flows.sweeping import load_sweep
from elf.pipeline.errors import Misconfigured
from elf.stages.json_files import read_json
from elf.stages.scores import METRICS
from elf.stages.tables import Figure, Group, Ours, Row, Table


@dataclass(frozen=True, slots=True)
class Found:
    """Our side of a row. ``metrics`` are those of its scores, None where they are not in the store."""

    ours: Ours
    step: str
    key: Fingerprint
    artifact: Artifact | None
    metrics: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class Filled:
    """A row as it is printed; ``found`` is None where it is none of ours."""

    label: str
    found: Found | None
    published: tuple[Figure | None, ...]


@dataclass(slots=True)
class Library:
    """Configurations as they are asked for by name, each read and planned once, all with the same overrides."""

    overrides: Sequence[str]
    store: str | None
    _read: dict[tuple[str, str], Request] = field(default_factory=dict[tuple[str, str], Request])
    _variants: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])

    def request(self, config: str, variant: str = "") -> Request:
        """Of a configuration, or of one variant of a sweep. Raises Misconfigured as ``load_request``."""
        if (config, variant) not in self._read:
            if variant:
                self.variants(config)
            else:
                self._read[config, variant] = load_request(config, self.overrides, self.store)
        return self._read[config, variant]

    def variants(self, config: str) -> tuple[str, ...]:
        """Those of its sweep, in order; none where it has none."""
        if config not in self._variants:
            members = ()
            if self.request(config).experiment.sweep is not None:
                members = load_sweep(config, self.overrides, self.store)
            self._read |= {(config, member.variant): member.request for member in members}
            self._variants[config] = tuple(member.variant for member in members)
        return self._variants[config]

    def find(self, ours: Ours) -> Found:
        """Raises Misconfigured where the configuration has no such setting, as with overrides of its list."""
        request, step = self.request(ours.config, ours.variant), f"evaluate-{ours.setting}"
        if step not in request.plan.names():
            known = ", ".join(each.name for each in request.experiment.sample) or "none"
            raise Misconfigured(
                f"The configuration {ours.config} has no sampling setting '{ours.setting}', which a row of this table "
                f"is made of; it has: {known}. Leave `sample` as it is shipped."
            )
        planned = request.plan[step]
        artifact = request.store.find(*planned.place)
        metrics = None if artifact is None else read_json(artifact.path / METRICS)
        return Found(ours, step, planned.key, artifact, metrics)


def fill(table: Table, library: Library) -> list[tuple[str, list[Filled]]]:
    """Rows by their headings."""
    return [
        (
            group.title,
            [
                Filled(row.label, None if row.ours is None else library.find(row.ours), row.published)
                for row in group.rows
            ],
        )
        for group in groups_of(table, library)
    ]


def groups_of(table: Table, library: Library) -> Iterator[Group]:
    """Those that are written down, or those that a configuration sweeps."""
    yield from table.groups
    if table.swept:
        known = table.known or {}
        variants = library.variants(table.swept)
        if variants:
            title = f"{table.swept}, {table.setting}"
            ours = {name: Ours(table.swept, table.setting, name) for name in variants}
        else:
            title = table.swept
            settings = library.request(table.swept).experiment.sample
            ours = {each.name: Ours(table.swept, each.name) for each in settings}
        yield Group(title, tuple(Row(name, each, known.get(name, ())) for name, each in ours.items()))
