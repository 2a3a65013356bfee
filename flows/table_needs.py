"""What of a table is missing, the commands that build it, and what each of them costs once those before it ran."""

import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from elf.flows.priced import Priced, price_plan
from elf.flows.table_rows import Filled, Found, Library
from elf.pipeline.sharing import Elsewhere
from elf.stages.totals import Estimate, Total, total_bytes, total_seconds

FEW = 4
"""Settings of a configuration that are built one by one; of more, all are."""


@dataclass(frozen=True, slots=True)
class Need:
    """A command and what every one of a table is given besides; ``rows`` of it come of it. Seconds and bytes are those
    of ``builds`` steps."""

    command: str
    more: str
    rows: int
    builds: int
    seconds: Total
    bytes: Total

    def plain(self) -> dict[str, Any]:
        """For JSON, the command in one piece."""
        return {
            "command": f"{self.command} {self.more}".rstrip(),
            "rows": self.rows,
            "builds": self.builds,
            **self.seconds.plain("seconds"),
            **self.bytes.plain("bytes"),
        }


def needs_of(rows: Iterable[Filled], library: Library, remote: Elsewhere) -> list[Need]:
    """In the order in which the commands are to be given."""
    missing: dict[str, list[Found]] = {}
    for row in rows:
        if row.found is not None and row.found.metrics is None:
            missing.setdefault(row.found.ours.config, []).append(row.found)
    paid: set[str] = set()
    found: list[Need] = []
    for config, some in missing.items():
        if some[0].ours.variant:
            found.append(_sweep(config, some, library, remote, paid))
        else:
            found += _runs(config, some, library, remote, paid)
    return found


def _sweep(
    config: str, missing: Sequence[Found], library: Library, remote: Elsewhere, paid: set[str]
) -> Need:
    plans = [
        price_plan(library.request(config, name), remote, probe=False) for name in library.variants(config)
    ]
    builds = [estimate for priced in plans for estimate in priced.builds]
    return _need(f"elf sweep {config}", len(missing), builds, library, paid)


def _runs(
    config: str, missing: Sequence[Found], library: Library, remote: Elsewhere, paid: set[str]
) -> Iterator[Need]:
    request = library.request(config)
    priced = price_plan(request, remote, probe=False)
    if len(missing) > FEW or len(missing) == len(request.experiment.sample):
        yield _need(f"elf run {config}", len(missing), priced.builds, library, paid)
        return
    for each in missing:
        yield _need(f"elf run {config} --until {each.step}", 1, _up_to(each.step, priced), library, paid)


def _up_to(step: str, priced: Priced) -> list[Estimate]:
    """What is built on the way to a step."""
    above = set(priced.request.plan.upstream([step]))
    return [each for each in priced.builds if each.planned.step.name in above]


def _need(command: str, rows: int, builds: Iterable[Estimate], library: Library, paid: set[str]) -> Need:
    new = {each.planned.key: each for each in builds if each.planned.key not in paid}
    paid |= set(new)
    more: list[str] = []
    if library.overrides:
        more += ["--set", *library.overrides]
    if library.store is not None:
        more += ["--store", library.store]
    return Need(
        command,
        shlex.join(more),
        rows,
        len(new),
        total_seconds(new.values()),
        total_bytes(new.values()),
    )
