"""``elf …`` as a process, and what it leaves: digests, half-made folders, processes."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil

ELF = str(Path(sys.executable).parent / "elf")


def environment(extra: Mapping[str, str]) -> dict[str, str]:
    """Ours without what would lead the command elsewhere."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ELF_")}
    return {**kept, "COLUMNS": "80", "OMP_NUM_THREADS": "1", **extra}


def start(folder: Path, *arguments: str, **extra: str) -> subprocess.Popen[str]:
    """The command in a folder and a session of its own, as a terminal would have it."""
    folder.mkdir(parents=True, exist_ok=True)
    return subprocess.Popen(
        [ELF, *arguments],
        cwd=folder,
        env=environment(extra),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def call(folder: Path, *arguments: str, **extra: str) -> str:
    """What a command that must succeed prints to its standard output."""
    process = start(folder, *arguments, **extra)
    out, err = process.communicate(timeout=280)
    assert process.returncode == 0, err
    return out


def keys(folder: Path) -> dict[str, str]:
    """``<stage>/<key>`` of every step of ``tiny``."""
    steps = json.loads(call(folder, "plan", "tiny", "--json"))["steps"]
    return {step["step"]: f"{step['stage']}/{step['key']}" for step in steps}


def contents(store: Path) -> dict[str, str]:
    """Digest of what each artifact holds; a report tells times and so is left out."""
    found: dict[str, str] = {}
    for path in sorted(store.glob("[a-z]*/*/manifest.json")):
        step = f"{path.parent.parent.name}/{path.parent.name}"
        if not step.startswith("report/"):
            found[step] = json.loads(path.read_text())["content"]
    return found


def half_made(store: Path) -> list[Path]:
    """What stands in the store without being finished, the (empty) lock files apart."""
    return [path for path in store.glob(".building/*/*") if path.suffix != ".lock"]


def copy_store(source: Path, target: Path, *, without: Sequence[str]) -> Path:
    """A store of the same artifacts (by hard links: they never change), less some ``<stage>/<key>``."""
    for path in sorted(source.glob("[a-z]*/*")):
        step = f"{path.parent.name}/{path.name}"
        if step not in without:
            shutil.copytree(path, target / step, copy_function=os.link)
    return target


def processes_of(folder: Path) -> list[psutil.Process]:
    """Living processes that work in or for a folder."""
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        try:
            if process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE:
                continue
            if str(folder) in " ".join(process.cmdline()) or Path(process.cwd()).is_relative_to(folder):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied, FileNotFoundError):
            continue
    return found


def wait_until(true: Callable[[], bool], seconds: float, what: str) -> None:
    """Wait for a condition. Fails saying ``what`` did not happen."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"{what} did not happen within {seconds:g} s"
        time.sleep(0.02)


def wait_for_the_end(folder: Path, seconds: float) -> None:
    """Wait until no process of a folder is left."""
    deadline = time.monotonic() + seconds
    while left := processes_of(folder):
        assert time.monotonic() < deadline, f"still there after {seconds:g} s: {[p.cmdline() for p in left]}"
        time.sleep(0.05)
