"""Names for people: ``runs/<experiment>/<step>`` links into the store, with the resolved configuration."""

import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from elf.cache.errors import Damaged
from elf.cache.files import make_folder, write_atomic, writing
from elf.cache.manifest import MANIFEST, Manifest
from elf.cache.roots import remember
from elf.cache.store import Artifact
from elf.cache.uses import Place
from elf.pipeline.errors import Failed
from elf.pipeline.plan import Plan
from elf.pipeline.runner import Outcome
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


def link_runs(
    root: Path, name: str, experiment: Section, plan: Plan, outcomes: Mapping[str, Outcome]
) -> Path:
    """Point ``root/name/<step>`` at each artifact and write the resolved configuration; returns the folder.

    Links of an earlier run of that name that are not of this plan are taken away: what stands in the folder belongs
    together. The store remembers ``root``, so that what it reaches is kept.
    """
    folder = make_folder(root / name)
    _drop_others(folder, plan)
    for store, links in _by_store(name, outcomes).items():
        remember(store, root, links)
    plain = experiment.model_dump(mode="json")
    write_atomic(folder / RESOLVED, yaml.safe_dump(plain, sort_keys=False, allow_unicode=True))
    for step, outcome in outcomes.items():
        _link(folder / step, outcome.artifact.path)
        page = outcome.artifact.path / PAGE
        if page.is_file():
            _link(folder / PAGE, page)
    return folder


def list_runs(root: Path) -> list[RunRecord]:
    """All runs under ``root``, by name."""
    return [read_run(root, path.parent.name) for path in sorted(root.glob(f"*/{RESOLVED}"))]


def read_run(root: Path, name: str) -> RunRecord:
    """One run. Raises Failed if there is no such run, naming those there are."""
    folder = root / name
    if not (folder / RESOLVED).is_file():
        known = ", ".join(sorted(path.parent.name for path in root.glob(f"*/{RESOLVED}"))) or "none yet"
        raise Failed(f"There is no run called '{name}' in {root.absolute()}; there are: {known}.")
    steps: dict[str, Artifact] = {}
    broken: list[str] = []
    for link in sorted(path for path in folder.iterdir() if path.is_symlink() and path.name != PAGE):
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
        for link in [path for path in folder.iterdir() if path.is_symlink()]:
            target = link.readlink()
            key = keys.get("report") if link.name == PAGE else keys.get(link.name)
            if key != (target.parent.name if link.name == PAGE else target.name):
                link.unlink(missing_ok=True)


def _by_store(name: str, outcomes: Mapping[str, Outcome]) -> dict[Path, dict[str, Place]]:
    """The links that will lead into each store."""
    found: dict[Path, dict[str, Place]] = {}
    for step, outcome in outcomes.items():
        artifact = outcome.artifact
        links = found.setdefault(artifact.path.parent.parent, {})
        links[f"{name}/{step}"] = artifact.manifest.place
    return found


def _link(link: Path, target: Path) -> None:
    """Make or move a symbolic link in one step; relative, so that a moved project keeps its links."""
    temporary = link.with_name(f".{link.name}.{uuid.uuid4().hex}")
    with writing(link):
        temporary.symlink_to(os.path.relpath(target.absolute(), link.parent.absolute()))
        temporary.replace(link)
