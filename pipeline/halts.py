"""Where a plan that is not finished stands: the step it goes on with, and what became of that the last time."""

import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from elf.cache.errors import CacheError
from elf.cache.manifest import Fingerprint
from elf.cache.store import Store
from elf.cache.uses import BUILDING
from elf.pipeline.plan import Plan, Planned
from elf.pipeline.runner import needed

State: TypeAlias = Literal["at work", "stopped", "failed", "killed", "not begun"]
LOG = Path("aux", "log.txt")
_BEGINS = re.compile(r"^\S+ (?P<step>.+): \S+ [0-9a-f]{64} begins$")
_STOPS = ("Interrupted", "KeyboardInterrupt", "Terminated", "SystemExit", "GivenUp")
"""Names of what ends a step that nothing is wrong with."""
WORDS = 160
"""Letters of a failure that are told."""


@dataclass(frozen=True, slots=True)
class Halt:
    """``missing`` steps of ``steps`` are still to be built, ``step`` the first of them that somebody began, else the
    first. ``words``: who works, or why it failed."""

    step: str
    key: Fingerprint
    state: State
    words: str
    missing: int
    steps: int

    def __str__(self) -> str:
        where = {
            "at work": f"{self.step} is being built by {self.words}",
            "stopped": f"{self.step} was stopped; the same command goes on with it",
            "failed": f"{self.step} failed: {self.words}",
            "killed": f"{self.step} was ended from outside; the same command goes on with it",
            "not begun": f"next comes {self.step}",
        }
        return f"Unfinished, {self.missing} of {self.steps} steps to go: {where[self.state]}."

    @property
    def brief(self) -> str:
        """A few words."""
        return f"next {self.step}" if self.state == "not begun" else f"{self.step} {self.state}"


def find_halt(plan: Plan, store: Store) -> Halt | None:
    """None where nothing is left to build."""
    missing = [plan[name] for name in needed(plan, store) if not _there(plan[name], store)]
    if not missing:
        return None
    looked = [(planned, *_look(planned, store)) for planned in missing]
    planned, state, words = next((each for each in looked if each[1] != "not begun"), looked[0])
    return Halt(planned.step.name, planned.key, state, words, len(missing), len(plan))


def _there(planned: Planned, store: Store) -> bool:
    try:
        return store.find(*planned.place) is not None
    except CacheError:
        return False


def _look(planned: Planned, store: Store) -> tuple[State, str]:
    builder = store.builder_of(*planned.place)
    if builder is not None:
        return "at work", builder
    stage, key = planned.place
    log = store.root / BUILDING / stage / key / LOG
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "not begun", ""
    return _last_words(lines)


def _last_words(lines: Collection[str]) -> tuple[State, str]:
    """How the last try ended, by the log that its runner kept."""
    step, state, words = "", "killed", ""
    for line in lines:
        begun = _BEGINS.match(line)
        if begun is not None:
            step, state, words = begun["step"], "killed", ""
            continue
        said = (
            re.match(rf"^\S+ {re.escape(step)}: (?P<kind>[A-Z]\w+): (?P<words>.*)$", line) if step else None
        )
        if said is not None:
            state = "stopped" if said["kind"] in _STOPS else "failed"
            words = said["words"].strip().rstrip(".")
    short = words if len(words) <= WORDS else f"{words[:WORDS].rstrip()} …"
    return (
        ("stopped", "") if state == "stopped" else ("failed", short) if state == "failed" else ("killed", "")
    )
