"""Names for people: ``runs/<experiment>/<step>`` links into the store, with the resolved configuration."""

import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from elf.cache.errors import Damaged
from elf.cache.files import make_folder, write_atomic, writing
from elf.cache.lease import Holder
from elf.cache.manifest import MANIFEST, Manifest
from elf.cache.roots import remember
from elf.cache.store import Artifact
from elf.pipeline.errors import Failed
from elf.pipeline.plan import Plan, Planned
from elf.pipeline.runner import Outcome, Watcher
from elf.pipeline.section import Section

RESOLVED = "experiment.yaml"
PAGE = "report.html"


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One folder under ``runs/``: its steps, and the links whose artifact is gone or damaged."""

    name: str
    path: Path
    steps: Mapping[str, Artifact]
    broken: tuple[str, ...]


class RunFolder:
    """``root/name``, where each step of a run gets a link as soon as it is there.

    A folder shows one configuration. That of an earlier run stays until this one has something else to show.
    """

    def __init__(self, root: Path, name: str, experiment: Section, plan: Plan) -> None:
        self._root, self._name, self._plan = root, name, plan
        self._settings = yaml.safe_dump(
            experiment.model_dump(mode="json"), sort_keys=False, allow_unicode=True
        )
        self.path = make_folder(root / name)
        self._claimed = False
        if not (self.path / RESOLVED).exists():
            self._claim()

    def _claim(self) -> None:
        """Write the resolved configuration. Links of another run of that name that are not of this plan are taken
        away: what stands in the folder belongs together."""
        _drop_others(self.path, self._plan)
        write_atomic(self.path / RESOLVED, self._settings)
        self._claimed = True

    def finish(self, outcomes: Mapping[str, Outcome]) -> None:
        """Have the folder hold these and nothing of another run of that name, which may have gone on beside."""
        self._claim()
        for step, outcome in outcomes.items():
            self._link_step(step, outcome.artifact)
        # A store that was made anew, or that another run told of this folder meanwhile, may not know all.
        for store in {_store_of(outcome.artifact) for outcome in outcomes.values()}:
            remember(store, self._root, {})

    def add(self, step: str, artifact: Artifact) -> None:
        """Point ``<step>`` at the artifact, whose store remembers ``root``, so that what it reaches is kept."""
        if not _leads(self.path / step, artifact.path):
            if not self._claimed:
                self._claim()
            remember(_store_of(artifact), self._root, {f"{self._name}/{step}": artifact.manifest.place})
        self._link_step(step, artifact)

    def _link_step(self, step: str, artifact: Artifact) -> None:
        page = artifact.path / PAGE
        for link, target in {step: artifact.path, **({PAGE: page} if page.is_file() else {})}.items():
            if not _leads(self.path / link, target):
                _link(self.path / link, target)


class Naming:
    """Tells another watcher all it hears, and links the steps that are there into the run's folder."""

    def __init__(self, folder: RunFolder, told: Watcher) -> None:
        self._folder, self._told = folder, told

    def on_hit(self, planned: Planned, artifact: Artifact) -> None:
        self._folder.add(planned.step.name, artifact)
        self._told.on_hit(planned, artifact)

    def on_wait(self, planned: Planned, holder: Holder | None) -> None:
        self._told.on_wait(planned, holder)

    def on_start(self, planned: Planned) -> None:
        self._told.on_start(planned)

    def on_pull(self, planned: Planned) -> None:
        self._told.on_pull(planned)

    def on_done(self, planned: Planned, outcome: Outcome) -> None:
        self._folder.add(planned.step.name, outcome.artifact)
        self._told.on_done(planned, outcome)


def list_runs(root: Path) -> list[RunRecord]:
    """All runs under ``root``, by name."""
    return [read_run(root, path.parent.name) for path in sorted(root.glob(f"*/{RESOLVED}"))]


def read_run(root: Path, name: str) -> RunRecord:
    """One run. Raises Failed if there is no such run, naming those there are."""
    folder = root / name
    if Path(name).name != name or name.startswith(".") or not (folder / RESOLVED).is_file():
        known = ", ".join(sorted(path.parent.name for path in root.glob(f"*/{RESOLVED}"))) or "none yet"
        raise Failed(f"There is no run called '{name}' in {root.absolute()}; there are: {known}.")
    steps: dict[str, Artifact] = {}
    broken: list[str] = []
    for link in (path for path in _links(folder) if path.name != PAGE):
        try:
            manifest = Manifest.from_json((link / MANIFEST).read_bytes())
        except (OSError, Damaged):
            broken.append(link.name)
        else:
            steps[link.name] = Artifact(link.resolve(), manifest)
    return RunRecord(name, folder, steps, tuple(broken))


def _drop_others(folder: Path, plan: Plan) -> None:
    keys = {planned.step.name: planned.key for planned in plan}
    with writing(folder):
        for link in _links(folder):
            try:
                target = link.readlink()
            except FileNotFoundError:  # another run of that name was faster
                continue
            key = keys.get("report") if link.name == PAGE else keys.get(link.name)
            if key != (target.parent.name if link.name == PAGE else target.name):
                link.unlink(missing_ok=True)


def _store_of(artifact: Artifact) -> Path:
    return artifact.path.parent.parent


def _leads(link: Path, target: Path) -> bool:
    try:
        return link.readlink() == _relative(link, target)
    except OSError:
        return False


def _links(folder: Path) -> list[Path]:
    """Those of steps and of the page; one that is being made beside them has a name with a dot."""
    return sorted(path for path in folder.iterdir() if not path.name.startswith(".") and path.is_symlink())


def _link(link: Path, target: Path) -> None:
    """Make or move a symbolic link in one step; relative, so that a moved project keeps its links."""
    temporary = link.with_name(f".{link.name}.{uuid.uuid4().hex}")
    with writing(link):
        temporary.symlink_to(_relative(link, target))
        temporary.replace(link)


def _relative(link: Path, target: Path) -> Path:
    return Path(os.path.relpath(target.absolute(), link.parent.absolute()))
