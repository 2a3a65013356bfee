"""Commands that build damaged artifacts again, for the runs that reach them."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from elf.cache.manifest import short
from elf.cache.roots import known_folders
from elf.cache.store import Store
from elf.cache.uses import Place
from elf.flows.request import open_store
from elf.pipeline.runs import RESOLVED

UNKNOWN = "elf run CONFIG --force STAGE, with the experiment it belongs to"


def cure(places: Iterable[Place], store: Store) -> str:
    """A sentence with the commands, one for each run that is needed; as few as reach all that can be reached."""
    left = dict.fromkeys(places)
    commands: list[str] = []
    for settings, steps in sorted(_runs(store, left), key=lambda run: -len(run[1])):
        wanted = sorted(step for step, place in steps.items() if place in left)
        if wanted:
            forced = " ".join(f"--force {step}" for step in wanted)
            commands.append(f"elf run {settings} {forced}{_told(store)}")
            left = {place: None for place in left if place not in steps.values()}
    if not commands:
        return f"To build it again: {UNKNOWN}."
    cured = f"To build again what is bad: {'; '.join(commands)}."
    if left:
        cured += f" No run that is known reaches {', '.join(f'{stage} {short(key)}' for stage, key in left)}."
    return cured


def _runs(store: Store, places: Iterable[Place]) -> Iterator[tuple[str, dict[str, Place]]]:
    """The settings of each run that reaches some of these, and by which steps."""
    wanted = set(places)
    for folder in known_folders(store.root):
        steps: dict[str, dict[str, Place]] = {}
        for link, place in folder.reached.items():
            name, _, step = link.rpartition("/")
            if folder.seen and name and place in wanted:
                steps.setdefault(name, {})[step] = place
        for name, reached in steps.items():
            if (settings := folder.path / name / RESOLVED).is_file():
                yield _near(settings), reached


def _near(path: Path) -> str:
    """The path from here, where that is shorter."""
    return min(os.path.relpath(path), str(path), key=len)


def _told(store: Store) -> str:
    return "" if store.root.absolute() == open_store(None).root.absolute() else f" --store {store.root}"
