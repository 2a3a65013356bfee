"""No descendant outlives its owner, however the owner ends."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

FAMILY = """
import os, signal, subprocess, sys, time
deaf = sys.argv[2] == "deaf"
if deaf:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if len(sys.argv) > 3:
    subprocess.Popen([sys.executable, __file__, *sys.argv[1:3]], start_new_session=True)
with open(sys.argv[1], "a") as out:
    out.write(f"{os.getpid()}\\n")
time.sleep(60)
"""

OWNER = """
import os, subprocess, sys
process = subprocess.Popen([sys.executable, "-m", "elf.pipeline.supervise", str(os.getpid()), "1", *sys.argv[1:]],
                           start_new_session=True)
sys.exit(process.wait())
"""


def start(tmp_path: Path, kind: str) -> tuple[subprocess.Popen[bytes], list[int]]:
    """An owner with a child and a grandchild in a session of its own; returns their process ids."""
    script, pids = tmp_path / "family.py", tmp_path / "pids"
    script.write_text(FAMILY)
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, sys.executable, str(script), str(pids), kind, "grandchild"]
    )
    deadline = time.monotonic() + 20
    while not pids.exists() or len(pids.read_text().split()) < 2:
        assert time.monotonic() < deadline, "the family did not start"
        time.sleep(0.05)
    return owner, [int(line) for line in pids.read_text().split()]


def all_gone(pids: list[int], within: float) -> bool:
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        alive = [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie"]
        if not alive:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("kind", ["polite", "deaf"])
def test_a_killed_owner_takes_its_family_along(tmp_path: Path, kind: str) -> None:
    owner, pids = start(tmp_path, kind)
    owner.kill()
    owner.wait()
    assert all_gone(pids, within=8)


@pytest.mark.parametrize("kind", ["polite", "deaf"])
def test_a_terminated_supervisor_ends_its_family(tmp_path: Path, kind: str) -> None:
    owner, pids = start(tmp_path, kind)
    supervisor = psutil.Process(owner.pid).children()[0]
    os.kill(supervisor.pid, signal.SIGTERM)
    assert all_gone(pids, within=8)
    assert owner.wait() == 128 + (signal.SIGKILL if kind == "deaf" else signal.SIGTERM)


@pytest.mark.parametrize("code", [0, 3])
def test_the_exit_code_is_the_commands(code: int) -> None:
    owner = subprocess.run([sys.executable, "-c", OWNER, sys.executable, "-c", f"raise SystemExit({code})"])
    assert owner.returncode == code
