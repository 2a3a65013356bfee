"""How the tests call the command line: as a process, as people do; a whole run; a Prefect server with a worker."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import matplotlib
import pytest
from commands import start
from planted import SECRETS
from prefect_service import Service, serving
from touches import Moment

from elf.stages.disk import disk_speed
from elf.stages.machine import DiskSpeed, machine_file, remember, this_machine

Elf = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session", autouse=True)
def measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cache folder of our own that holds what a probe of machine and disk would find, so that none is made."""
    fonts = Path(matplotlib.get_cachedir())  # need not be listed anew
    with pytest.MonkeyPatch.context() as changes:
        changes.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        changes.setenv("MPLCONFIGDIR", str(fonts))
        here = this_machine()
        speed = replace(here.speed, measured="2026-11-30")
        remember(machine_file(here.cores, here.gpus), speed, pytest.fail)
        disk = DiskSpeed(write=5e8, read=1e9, measured="2026-11-30")
        disk_speed(tmp_path_factory.getbasetemp(), anew=True, measure=lambda _: disk)
        yield


@pytest.fixture
def elf(tmp_path: Path) -> Elf:
    """Run ``elf …`` in a folder of its own, 80 columns wide."""

    def call(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("ELF_")}
        return subprocess.run(
            [str(Path(sys.executable).parent / "elf"), *arguments],
            cwd=tmp_path,
            env={**kept, "COLUMNS": "80", "OMP_NUM_THREADS": "1", **environment},
            capture_output=True,
            text=True,
            check=False,
        )

    return call


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One server and worker for every test that leaves them as they were."""
    with serving(tmp_path_factory.mktemp("prefect")) as made:
        yield made


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which ``elf run tiny`` ran undisturbed; ``touches.txt`` says which files it touched, in order.

    Its environment is full of secrets, and ``said.txt`` holds what it printed.
    """
    folder = tmp_path_factory.mktemp("whole")
    watched = Moment(str(folder / "touches.txt"), str(folder / "store"), step="")
    process = start(folder, "run", "tiny", **watched.environment(), **SECRETS)
    out, err = process.communicate(timeout=280)
    assert process.returncode == 0, err
    assert out.rstrip().endswith("runs/tiny/report.html")
    (folder / "said.txt").write_text(out + err)
    return folder


@pytest.fixture(scope="module")
def copied(whole: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of it to change."""
    folder = tmp_path_factory.mktemp("copied") / "run"
    shutil.copytree(whole, folder, symlinks=True)
    return folder
