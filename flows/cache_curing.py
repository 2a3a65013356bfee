"""Commands that build damaged artifacts again, for the runs that reach them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from elf.cache.manifest import short
from elf.cache.roots import known_folders
from elf.cache.store import Store
from elf.cache.uses import Place
from elf.flows.request import RUNS, open_store
from elf.pipeline.runs import RESOLVED

UNKNOWN = "elf run CONFIG --force STAGE, with the experiment it belongs to"


def cure(places: Iterable[Place], store: Store) -> str:
    """A sentence with the commands, one for each run that is needed; as few as reach all that can be reached."""
    left = dict.fromkeys(places)
    commands: list[str] = []
    for run in sorted(_runs(store, left), key=lambda run: -len(run.steps)):
        wanted = sorted(step for step, place in run.steps.items() if place in left)
        if wanted:
            commands.append(run.command(wanted, store))
            left = {place: None for place in left if place not in run.steps.values()}
    if not commands:
        return f"To build it again: {UNKNOWN}."
    cured = f"To build again what is bad: {'; '.join(commands)}."
    if left:
        cured += f" No run that is known reaches {', '.join(f'{stage} {short(key)}' for stage, key in left)}."
    return cured


@dataclass(frozen=True, slots=True)
class _Run:
    """A run in a folder of runs, and which of its steps are bad."""

    runs: Path
    name: str
    steps: Mapping[str, Place]

    def command(self, steps: Sequence[str], store: Store) -> str:
        """What to type: in the folder where the run was made, for there its relative paths lead somewhere."""
        forced = " ".join(f"--force {step}" for step in steps)
        run = f"elf run {quote(str(Path(self.runs.name, self.name, RESOLVED)))} {forced}"
        if self.runs != RUNS.absolute():
            return f"cd {quote(str(self.runs.parent))} && {run} --store {quote(str(store.root.absolute()))}"
        default = open_store(None).root.absolute()
        return run if store.root.absolute() == default else f"{run} --store {quote(str(store.root))}"


def _runs(store: Store, places: Iterable[Place]) -> Iterator[_Run]:
    """The runs that reach some of these."""
    wanted = set(places)
    for folder in known_folders(store.root):
        found: dict[str, dict[str, Place]] = {}
        for link, place in folder.reached.items():
            name, _, step = link.rpartition("/")
            if folder.seen and name and place in wanted:
                found.setdefault(name, {})[step] = place
        for name, steps in found.items():
            if (folder.path / name / RESOLVED).is_file():
                yield _Run(folder.path, name, steps)
