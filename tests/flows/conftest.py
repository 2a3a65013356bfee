"""How the tests call the command line: as a process, as people do; and a Prefect server with a worker."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prefect_service import Service, serving

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
