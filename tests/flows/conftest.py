"""How the tests call the command line: as a process, as people do; a whole run; a Prefect server with a worker."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from commands import start
from planted import SECRETS
from prefect_service import Service, serving
from touches import Moment

Elf = Callable[..., subprocess.CompletedProcess[str]]


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
