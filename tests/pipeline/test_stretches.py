"""All the time a step was worked on counts, however often it was stopped."""

import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from toy_stages import Recorder, toy_plan

from elf.cache.files import write_atomic
from elf.cache.store import Store
from elf.pipeline.progress import LineProgress
from elf.pipeline.runner import materialise
from elf.pipeline.stretches import FILE, Stretches


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "aux").mkdir()
    return tmp_path


def test_stretches_add_up(folder: Path) -> None:
    first = Stretches(folder)
    time.sleep(0.05)
    first.end()
    second = Stretches(folder)
    time.sleep(0.05)
    assert 0.1 <= second.seconds() < 5
    assert abs((second.started - first.started).total_seconds()) < 0.002
    second.end()
    assert Stretches(folder).seconds() == pytest.approx(second.seconds(), abs=0.05)


def test_a_killed_stretch_lasted_until_it_last_wrote(folder: Path) -> None:
    begun = datetime.now(UTC) - timedelta(seconds=1000)
    told = f'[{{"started": "{begun.isoformat()}", "seconds": null}}]'
    write_atomic(folder / "aux" / FILE, told)
    part = folder / "part"
    part.write_text("half")
    for path, seconds in ((folder / "aux" / FILE, 0), (part, 300)):
        moment = (begun + timedelta(seconds=seconds)).timestamp()
        os.utime(path, times=(moment, moment))
    assert Stretches(folder).seconds() == pytest.approx(300, abs=5)


@pytest.mark.parametrize("text", ["", "{}", '[{"started": 3}]', "[1]"])
def test_a_lost_clock_reading_stops_nobody(folder: Path, text: str) -> None:
    (folder / "aux" / FILE).write_text(text)
    assert Stretches(folder).seconds() < 5


def test_the_manifest_counts_what_came_before(store: Store, watch: Recorder, quiet: LineProgress) -> None:
    plan = toy_plan()
    key = plan["words"].key
    begun = datetime(2026, 1, 1, tzinfo=UTC)
    with store.building("words", key) as building:
        (building.path / "aux").mkdir()
        told = f'[{{"started": "{begun.isoformat()}", "seconds": 123.0}}]'
        write_atomic(building.path / "aux" / FILE, told)
    made = materialise(plan, store, watch=watch, progress=quiet)["words"].artifact.manifest.provenance
    assert made.seconds == pytest.approx(123, abs=5)
    assert made.started == "2026-01-01T00:00:00+00:00"
