"""Where an artifact came from: commit, command, host, versions. Never part of a key or of its content."""

import platform
import socket
import subprocess
import sys
from collections.abc import Mapping
from datetime import datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from elf.cache.manifest import Provenance
from elf.cache.redaction import redact_arguments

PACKAGES = (
    "embedded-language-flows",
    "accelerate",
    "dask",
    "datasets",
    "numpy",
    "pyarrow",
    "tokenizers",
    "torch",
    "transformers",
    "zarr",
)


def record(*, started: datetime, seconds: float) -> Provenance:
    """Provenance of what this process built, begun at ``started`` (UTC) and worked on for ``seconds``."""
    commit, dirty = _work_tree()
    return Provenance(
        git=commit,
        dirty=dirty,
        argv=redact_arguments(sys.argv),
        host=socket.gethostname(),
        python=platform.python_version(),
        versions=_versions(),
        started=started.isoformat(timespec="seconds"),
        seconds=round(seconds, 3),
    )


@cache
def _versions() -> Mapping[str, str]:
    found: dict[str, str] = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


@cache
def _work_tree() -> tuple[str | None, bool | None]:
    """Commit and dirt of the checkout this code runs from; (None, None) when it is not a git checkout."""
    root = Path(__file__).resolve().parent.parent
    if not (root / ".git").exists():
        return None, None
    commit = _git(root, "rev-parse", "HEAD")
    status = _git(root, "status", "--porcelain", "--untracked-files=no")
    return commit or None, None if status is None else bool(status)


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
