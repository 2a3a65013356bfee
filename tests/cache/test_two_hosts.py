"""Hosts that share one folder: each artifact is built once, whoever waits, dies or sleeps.

A process plays a host: it has a host name of its own, so that the others cannot ask the kernel whether it lives and
go by its heartbeat alone; and the locks of the shared file system say yes to everybody.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from elf.cache.manifest import Fingerprint
from elf.cache.records import check_files
from elf.cache.store import Store

HOST = """
import fcntl, socket, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
socket.gethostname = lambda: sys.argv[2]
fcntl.flock = lambda fd, how: None
from conftest import fill_slowly, key_of, manifest_of
from elf.cache.errors import StoreBusy
from elf.cache.store import Store
store, said = Store(Path(sys.argv[3]), ttl=float(sys.argv[4])), set()
def say(*words):
    print(*words, flush=True)
for name in sys.argv[6:]:
    key = key_of(name)
    def waits(holder):
        if holder is not None and (name, holder.host) not in said:
            said.add((name, holder.host))
            say("waits", name, holder.host)
    try:
        with store.building("encode", key, on_wait=waits) as building:
            if store.find("encode", key) is None:
                (building.path / "first").write_text(name)
                say("begins", name, "fresh" if building.fresh else "goes-on")
                if sys.argv[5] == "slow":
                    sys.stdin.readline()
                fill_slowly(building.path)
                store.commit(building, manifest_of(building.path, "encode", key))
                say("built", name)
            else:
                say("takes", name)
    except StoreBusy:
        say("lost", name)
"""


@contextmanager
def host(
    name: str, store: Store, *keys: str, ttl: float = 60, pace: str = "quick"
) -> Iterator["subprocess.Popen[str]"]:
    here = str(Path(__file__).parent)
    arguments = [here, name, str(store.root), str(ttl), pace, *keys]
    process = subprocess.Popen(
        [sys.executable, "-c", HOST, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def told(process: "subprocess.Popen[str]", *, but: str = "") -> str:
    """The next line it says that does not begin with ``but``."""
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    return told(process) if but and line.startswith(but) else line


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "shared")


@pytest.fixture
def check(store: Store, named_key: Callable[[str], Fingerprint]) -> Callable[[str], None]:
    """Fails unless the artifact is there and whole."""

    def check(name: str) -> None:
        artifact = store.find("encode", named_key(name))
        assert artifact is not None
        check_files(artifact.path, artifact.manifest, deep=True)

    return check


def test_two_hosts_build_each_artifact_once(store: Store, check: Callable[[str], None]) -> None:
    names = ("one", "two")
    with host("alpha", store, *names) as first, host("beta", store, *reversed(names)) as second:
        said = [process.communicate(timeout=120)[0].split("\n") for process in (first, second)]
    for name in names:
        assert sum(lines.count(f"built {name}") for lines in said) == 1
        assert sum(lines.count(f"takes {name}") for lines in said) == 1
        check(name)


def test_a_host_waits_for_the_other_and_takes_what_it_built(
    store: Store, check: Callable[[str], None]
) -> None:
    with host("alpha", store, "one", pace="slow") as first:
        assert told(first) == "begins one fresh"
        with host("beta", store, "one") as second:
            assert told(second) == "waits one alpha"
            print(file=first.stdin, flush=True)
            assert told(second) == "takes one"
        assert told(first) == "built one"
    check("one")


def test_a_dead_host_is_followed_when_its_heartbeat_is_too_old(
    store: Store, check: Callable[[str], None]
) -> None:
    ttl = 2.0
    with host("alpha", store, "one", ttl=ttl, pace="slow") as first:
        assert told(first) == "begins one fresh"
        first.kill()
        dead = time.time()
    lease = next(store.root.glob(".building/encode/*.lease"))
    assert dead - lease.stat().st_mtime <= ttl, "it had a heartbeat"
    ends = lease.stat().st_mtime + ttl
    with host("beta", store, "one", ttl=ttl) as second:
        assert told(second, but="waits") == "begins one goes-on"
        assert time.time() >= ends, "it waited until the dead one could not be alive"
        assert told(second) == "built one"
    check("one")


@pytest.mark.slow
def test_a_host_that_slept_too_long_publishes_nothing(store: Store, check: Callable[[str], None]) -> None:
    ttl = 1.0
    with host("alpha", store, "one", ttl=ttl, pace="slow") as first:
        assert told(first) == "begins one fresh"
        os.kill(first.pid, signal.SIGSTOP)
        with host("beta", store, "one", ttl=ttl, pace="slow") as second:
            assert told(second, but="waits") == "begins one goes-on"
            print(file=first.stdin, flush=True)
            os.kill(first.pid, signal.SIGCONT)
            assert told(first) == "lost one"
            print(file=second.stdin, flush=True)
            assert told(second) == "built one"
    check("one")
