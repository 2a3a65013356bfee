"""What the engine's tests share."""

from pathlib import Path

import pytest
import toy_stages

from elf.cache.store import Store
from elf.pipeline.progress import LineProgress


@pytest.fixture(autouse=True)
def _nothing_built() -> None:
    toy_stages.BUILT.clear()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def watch() -> toy_stages.Recorder:
    return toy_stages.Recorder()


@pytest.fixture
def quiet() -> LineProgress:
    return LineProgress(every=1e9)
