"""How each step of a run came to be there, told to the sweep that began the run as a command of its own.

Only the process that built a step knows that it did: the store tells what is there, and another sweep may have put it
there meanwhile. The sweep names a file, and the run adds a line to it for each step as it is done.
"""

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Literal, TypeAlias

from elf.cache.lease import Holder
from elf.cache.store import Artifact
from elf.pipeline.plan import Planned
from elf.pipeline.runner import Outcome, Watcher

VARIABLE = "ELF_TELL_OUTCOMES"
"""Names the file, in the environment of a run that a sweep began."""
How: TypeAlias = Literal["built", "pulled", "reused"]
_ORDER: tuple[How, ...] = ("reused", "pulled", "built")


def telling_outcomes(watch: Watcher) -> Watcher:
    """A watcher that also adds to the file, where one is asked for."""
    path = os.environ.get(VARIABLE)
    return watch if path is None else _Telling(watch, Path(path))


def read_outcomes(path: Path) -> Mapping[str, How]:
    """By key; of a run that was ended in the middle, or could not write, what it told."""
    told: list[Mapping[str, How]] = []
    with suppress(FileNotFoundError):
        for line in path.read_text(encoding="utf-8").splitlines():
            with suppress(ValueError):  # torn
                key, how = json.loads(line)
                told.append({key: how})
    return together(told)


def together(told: Iterable[Mapping[str, How]]) -> Mapping[str, How]:
    """Of several runs by key: what one of them built was built, whoever reused it then."""
    found: dict[str, How] = {}
    for each in told:
        for key, how in each.items():
            if _ORDER.index(how) >= _ORDER.index(found.get(key, how)):
                found[key] = how
    return found


class _Telling:
    def __init__(self, told: Watcher, path: Path) -> None:
        self._told, self._path = told, path

    def on_hit(self, planned: Planned, artifact: Artifact) -> None:
        self._tell(planned, "reused")
        self._told.on_hit(planned, artifact)

    def on_wait(self, planned: Planned, holder: Holder | None) -> None:
        self._told.on_wait(planned, holder)

    def on_start(self, planned: Planned) -> None:
        self._told.on_start(planned)

    def on_pull(self, planned: Planned) -> None:
        self._told.on_pull(planned)

    def on_done(self, planned: Planned, outcome: Outcome) -> None:
        self._tell(planned, "pulled" if outcome.pulled else "reused" if outcome.reused else "built")
        self._told.on_done(planned, outcome)

    def _tell(self, planned: Planned, how: How) -> None:
        # What a sweep says of its costs is worth no run.
        with suppress(OSError), self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps([planned.key, how]) + "\n")
