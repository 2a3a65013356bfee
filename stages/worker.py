"""A stage's child process: ``accelerate launch -m elf.stages.worker JOB.json``.

The job names entry, section, inputs and settings; facts go to ``aux/facts.json``, a failure in words to
``aux/failure.json``, progress to the events file. Exit code: 0 done, 1 failed, 2 bad settings, 143 interrupted
(saved, and the same job goes on from there).
"""

import json
import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from elf.cache.errors import CacheError
from elf.cache.files import filling, write_atomic
from elf.cache.manifest import MANIFEST, Manifest
from elf.cache.redaction import redact
from elf.cache.store import Artifact
from elf.pipeline.devices import Devices, note_devices
from elf.pipeline.errors import Failed, Misconfigured
from elf.pipeline.progress import Bar, Progress
from elf.pipeline.replay import ChildProgress
from elf.pipeline.section import Section
from elf.pipeline.stage import Compute, StageContext, Unbuilt
from elf.stages.devices import choose_device, describe_devices
from elf.stages.stopping import EXIT_CODE, Interrupted


class _Silence:
    """The progress of ranks that have nothing to say."""

    def note(self, line: str) -> None:
        pass

    @contextmanager
    def bar(self, label: str, total: float | None, *, unit: str = "", done: float = 0) -> Generator[Bar]:
        yield self

    def advance(self, amount: float = 1, **shown: float | str) -> None:
        pass


def main(path: Path) -> int:
    """Run the job described in ``path``; the exit code."""
    job = json.loads(path.read_text(encoding="utf-8"))
    speaks = os.environ.get("RANK", "0") == "0"
    context = _context(job, ChildProgress(Path(job["events"])) if speaks else _Silence())
    try:
        with filling(context.out):
            if speaks:
                note_devices(context.out, _devices(context))
            facts = _find(job["entry"])(_section(job["section"]), context)
    except (Failed, CacheError, Misconfigured) as error:
        # Any rank may be the one that knows: rows are read where they are used.
        misused = isinstance(error, Misconfigured)
        text = redact(str(error))
        write_atomic(context.aux / "failure.json", json.dumps({"text": text, "misconfigured": misused}))
        print(text, file=sys.stderr, flush=True)
        return 2 if misused else 1
    except Interrupted as interruption:
        context.progress.note(str(interruption))
        return EXIT_CODE
    if speaks:
        write_atomic(context.aux / "facts.json", json.dumps(dict(facts), sort_keys=True, allow_nan=False))
    return 0


def _context(job: dict[str, Any], progress: Progress) -> StageContext:
    return StageContext(
        out=Path(job["out"]),
        inputs=_artifacts(job["inputs"]),
        compute=_compute(job["compute"]),
        progress=progress,
        unbuilt={role: _unbuilt(each) for role, each in job["unbuilt"].items()},
    )


def _devices(context: StageContext) -> Devices:
    """Of all processes that were launched with this one."""
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    hosts = max(1, processes // int(os.environ.get("LOCAL_WORLD_SIZE", str(processes))))
    return describe_devices(choose_device(context.compute.device), processes=processes, hosts=hosts)


def _unbuilt(plain: dict[str, Any]) -> Unbuilt:
    return Unbuilt(
        manifest=Manifest.from_json(json.dumps(plain["manifest"])),
        section=_section(plain["section"]),
        compute=_compute(plain["compute"]),
        inputs=_artifacts(plain["inputs"]),
    )


def _artifacts(paths: dict[str, str]) -> dict[str, Artifact]:
    return {role: _artifact(Path(path)) for role, path in paths.items()}


def _artifact(path: Path) -> Artifact:
    return Artifact(path, Manifest.from_json((path / MANIFEST).read_bytes()))


def _compute(plain: dict[str, Any]) -> Compute:
    section = _section(plain)
    assert isinstance(section, Compute)
    return section


def _section(plain: dict[str, Any]) -> Section:
    kind: type[Section] = _find(plain["type"])
    return kind.model_validate_json(json.dumps(plain["values"]))


def _find(name: str) -> Any:
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
