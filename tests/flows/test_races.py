"""Several runs at once on one store: every artifact is built once, whole, and by one builder at a time."""

import json
import os
import re
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from commands import contents, copy_store, half_made, keys, start, wait_until
from touches import FOLDER, Moment

from elf.cache.lease import TTL, Holder
from elf.cache.store import BUILDING

CHEAP = ("tokenize", "sample", "control", "evaluate", "report")
"""Stages that are built without training, whose alone the latents are."""
LIES = {"PYTHONPATH": f"{FOLDER / 'lying'}:{FOLDER}"}


def finish(processes: Sequence[subprocess.Popen[str]]) -> Counter[str]:
    """Wait for runs that must succeed; how often each step was said to be built."""
    built: Counter[str] = Counter()
    for process in processes:
        out, err = process.communicate(timeout=600)
        assert process.returncode == 0, err
        built.update(re.findall(r"^built +(\S+)", out, re.MULTILINE))
    return built


def check_race(whole: Path, folder: Path, steps: dict[str, str], **environment: str) -> None:
    """Two runs of one config in one store that lacks the cheap stages: each is built by one, and both succeed."""
    missing = {name: key for name, key in steps.items() if key.split("/")[0] in CHEAP}
    store = copy_store(whole / "store", folder / "store", without=[*missing.values()])
    built = finish([start(folder, "run", "tiny", **environment) for _ in range(2)])
    assert built == dict.fromkeys(missing, 1)
    assert contents(store) == contents(whole / "store")
    assert not half_made(store)


@pytest.mark.slow
def test_two_runs_of_one_config_share_the_work(whole: Path, tmp_path: Path) -> None:
    check_race(whole, tmp_path, keys(whole))


@pytest.mark.slow
def test_a_lock_that_lies_changes_nothing(whole: Path, tmp_path: Path) -> None:
    check_race(whole, tmp_path, keys(whole), **LIES)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_eight_runs_of_four_configs_build_what_they_share_once(whole: Path, tmp_path: Path) -> None:
    steps = keys(whole)
    missing = [key for key in steps.values() if key.split("/")[0] in ("tokenize", "encode", "train")]
    store = copy_store(whole / "store", tmp_path / "store", without=missing)
    settings = [f"train.seed={seed}" for seed in range(4)] * 2
    built = finish(
        [start(tmp_path, "run", "tiny", "--until", "train", "--set", setting) for setting in settings]
    )
    shared = [name for name in built if name != "train"]
    assert sorted(shared) == sorted(name for name in steps if steps[name] in missing and name != "train")
    assert built == {**dict.fromkeys(shared, 1), "train": 4}
    assert len(list(store.glob("train/*/manifest.json"))) == 4
    found = contents(store)
    wanted = contents(whole / "store")
    assert all(found[steps[name]] == wanted[steps[name]] for name in (*shared, "train"))
    assert not half_made(store)


@pytest.mark.slow
def test_the_lease_of_a_host_that_is_gone_runs_out(whole: Path, tmp_path: Path) -> None:
    step = keys(whole)["evaluate-real"]
    store = copy_store(whole / "store", tmp_path / "store", without=[step])
    leave_lease(store, step, age=0)
    process = start(tmp_path, "run", "tiny", "--only", "evaluate-real")
    assert process.stdout is not None
    assert any(re.search(r"waits +evaluate-real", line) for line in process.stdout)
    assert "process 1 on elsewhere" in next(process.stdout)
    ends = leave_lease(store, step, age=TTL - 3).stat().st_mtime + TTL  # since when nothing was heard of it
    _, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    assert time.time() > ends
    assert contents(store) == contents(whole / "store")
    assert not half_made(store)


@pytest.mark.slow
@pytest.mark.parametrize(("step", "at"), [("encode", 70), ("sample-sde", 30), ("tokenize", 50)])
def test_an_owner_that_slept_publishes_nothing(step: str, at: int, whole: Path, tmp_path: Path) -> None:
    """It was taken for dead while it slept, and not even the lock told the truth."""
    folder = tmp_path.resolve()
    key = keys(whole)[step]
    store = copy_store(whole / "store", folder / "store", without=[key])
    moment = Moment(str(folder / "touches.txt"), str(store), key, at=at, number=signal.SIGSTOP)
    arguments = ("run", "tiny", "--only", step)
    sleeper = start(folder, *arguments, **{**moment.environment(), **LIES})
    wait_until(lambda: is_stopped(sleeper.pid), 120, "its sleep")
    leave_lease(store, key, age=2 * TTL)
    assert finish([start(folder, *arguments, **LIES)]) == {step: 1}
    os.kill(sleeper.pid, signal.SIGCONT)
    out, err = sleeper.communicate(timeout=120)
    assert "Traceback" not in err
    assert "not foreseen" not in err
    assert sleeper.returncode == 1 or "built" not in out
    assert contents(store) == contents(whole / "store")
    assert not half_made(store)


def leave_lease(store: Path, step: str, *, age: float) -> Path:
    """A lease of process 1 on another host, whose last heartbeat was ``age`` seconds ago."""
    lease = store / BUILDING / f"{step}.lease"
    lease.parent.mkdir(parents=True, exist_ok=True)
    holder = Holder("elsewhere", "another boot", "pid:[1]", 1, 1, "a token", ("elf", "run", "tiny"))
    temporary = lease.with_suffix(".new")
    temporary.write_text(json.dumps({name: getattr(holder, name) for name in Holder.__slots__}))
    temporary.replace(lease)
    then = time.time() - age
    os.utime(lease, times=(then, then))
    return lease


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
