"""Stages in child processes: facts, progress, logs and every way to end."""

import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import psutil
import pytest
from toy_stages import Recorder

from elf.cache.store import Store
from elf.pipeline import launch
from elf.pipeline.errors import Failed
from elf.pipeline.plan import Plan, Step
from elf.pipeline.progress import Bar, LineProgress
from elf.pipeline.runner import materialise
from elf.pipeline.section import Section
from elf.pipeline.stage import Compute, Launch, StageSpec

SUPPORT = Path(__file__).parent.parent / "support"


class Toy(Section):
    ending: Literal["well", "crash", "refuse", "die", "hang", "deaf"] = "well"


SPEC = StageSpec("toy", Toy, "", (), version=1, launch=Launch.ACCELERATE, worker="toy_worker")


@pytest.fixture(autouse=True)
def _worker_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(SUPPORT))


def plan(ending: Literal["well", "crash", "refuse", "die", "hang", "deaf"]) -> Plan:
    return Plan([Step("toy", SPEC, Toy(ending=ending), compute=Compute(device="cpu", threads=2))])


def test_facts_progress_and_log_come_back(store: Store, watch: Recorder) -> None:
    said = io.StringIO()
    built = materialise(plan("well"), store, watch=watch, progress=LineProgress(said))["toy"]
    manifest = built.artifact.manifest
    assert manifest.facts == {"threads": 2}
    assert list(manifest.files) == ["result"]
    assert list(manifest.aux) == ["aux/log.txt", "aux/stretches.json"]
    assert "working: 3 of 3 things" in said.getvalue()
    assert "loss 0.5" in said.getvalue()
    assert "a line for the log" in (built.artifact.path / "aux/log.txt").read_text()


def test_a_refusal_is_told_in_the_childs_words(store: Store, watch: Recorder, quiet: LineProgress) -> None:
    with pytest.raises(Failed, match=r"^The rows do not fit\. The log of toy is .*/aux/log\.txt\.$"):
        materialise(plan("refuse"), store, watch=watch, progress=quiet)


def test_a_crash_names_its_last_words_and_its_log(store: Store, watch: Recorder, quiet: LineProgress) -> None:
    with pytest.raises(Failed, match=r"something broke here.*log\.txt"):
        materialise(plan("crash"), store, watch=watch, progress=quiet)


def test_a_child_that_was_killed_is_called_that(store: Store, watch: Recorder, quiet: LineProgress) -> None:
    with pytest.raises(Failed, match=r"toy process was ended by SIGKILL.*the same command goes on"):
        materialise(plan("die"), store, watch=watch, progress=quiet)
    log = next(store.root.glob(".building/toy/*/aux/log.txt")).read_text()
    assert "working: 0 of 3" in log
    assert "working: finished" not in log
    with pytest.raises(Failed, match=r"something broke here"):
        materialise(plan("crash"), store, watch=watch, progress=quiet)


@pytest.mark.parametrize("ending", ["hang", "deaf"])
def test_a_stopped_child_that_had_no_time_to_save_is_told_of(
    ending: Literal["hang", "deaf"], store: Store, watch: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Impatient(LineProgress):
        @contextmanager
        def bar(self, label: str, total: float | None, *, unit: str = "", done: float = 0) -> Generator[Bar]:
            with super().bar(label, total, unit=unit, done=done):
                raise KeyboardInterrupt
            yield

    monkeypatch.setattr(launch, "GRACE", 0.5)
    monkeypatch.setattr(launch, "PATIENCE", 0.1)
    said = io.StringIO()
    with pytest.raises(KeyboardInterrupt):
        materialise(plan(ending), store, watch=watch, progress=Impatient(said))
    assert ("was killed; what it saved before stays" in said.getvalue()) == (ending == "deaf")


def test_no_child_is_left_when_the_runner_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "run.py"
    script.write_text(
        "import sys, toy_stages\n"
        "from pathlib import Path\n"
        "from elf.cache.store import Store\n"
        "from elf.pipeline.plan import Plan, Step\n"
        "from elf.pipeline.progress import LineProgress\n"
        "from elf.pipeline.runner import materialise\n"
        "from elf.pipeline.section import Section\n"
        "from elf.pipeline.stage import Compute, Launch, StageSpec\n"
        "class Toy(Section):\n    ending: str = 'hang'\n"
        "spec = StageSpec('toy', Toy, '', (), version=1, launch=Launch.ACCELERATE, worker='toy_worker')\n"
        "plan = Plan([Step('toy', spec, Toy(), compute=Compute(device='cpu', threads=1))])\n"
        "materialise(plan, Store(Path(sys.argv[1])), watch=toy_stages.Recorder(), progress=LineProgress())\n"
    )
    runner = subprocess.Popen([sys.executable, str(script), str(tmp_path / "store")])
    pid = _wait_for_pid(tmp_path / "store")
    os.kill(runner.pid, signal.SIGKILL)
    runner.wait()
    deadline = time.monotonic() + 10
    while psutil.pid_exists(pid):
        assert time.monotonic() < deadline, "the child outlived its owner"
        time.sleep(0.1)


def _wait_for_pid(store: Path) -> int:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for path in store.glob(".building/toy/*/aux/pid"):
            if text := path.read_text():
                return int(text)
        time.sleep(0.1)
    raise AssertionError("the child did not start")
