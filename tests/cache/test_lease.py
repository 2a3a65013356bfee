"""One owner at a time: living ones are waited for, dead ones replaced, sleepers told that they lost."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from elf.cache.errors import StoreBusy
from elf.cache.lease import Holder, acquire, holder_of

HOLD = """
import sys, time
from pathlib import Path
from elf.cache.lease import acquire
lease = acquire(Path(sys.argv[1]))
{more}
print("held", flush=True)
time.sleep(60)
"""


class GaveUpError(Exception):
    pass


def give_up(holder: Holder | None) -> None:
    raise GaveUpError(holder)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "building" / "key"


def start(place: Path, more: str = "") -> subprocess.Popen[str]:
    script = HOLD.format(more=more)
    process = subprocess.Popen([sys.executable, "-c", script, str(place)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


@pytest.fixture
def holder(place: Path) -> Iterator[subprocess.Popen[str]]:
    with start(place) as process:
        yield process
        process.kill()


def write_lease(place: Path, holder: Holder, *, age: float = 0.0) -> Path:
    place.parent.mkdir(parents=True, exist_ok=True)
    lease = place.with_name("key.lease")
    lease.write_text(json.dumps(asdict(holder)))
    then = time.time() - age
    os.utime(lease, (then, then))
    return lease


def test_a_free_lease_is_taken_renewed_and_given_back(place: Path) -> None:
    lease = acquire(place, ttl=0.1)
    mark = place.with_name("key.lease")
    before = mark.stat().st_mtime_ns
    assert holder_of(place) == lease.holder
    deadline = time.monotonic() + 5
    while mark.stat().st_mtime_ns == before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert mark.stat().st_mtime_ns > before
    lease.check()
    lease.release()
    assert holder_of(place) is None
    assert not mark.exists()
    acquire(place, on_wait=give_up).release()


def test_a_living_owner_is_waited_for_and_named(place: Path, holder: subprocess.Popen[str]) -> None:
    with pytest.raises(GaveUpError, match=f"process {holder.pid} on "):
        acquire(place, on_wait=give_up)


def test_within_one_process_too_there_is_one_owner(place: Path) -> None:
    first = acquire(place)
    waits: list[Holder | None] = []
    taken: list[bool] = []

    def second() -> None:
        acquire(place, on_wait=waits.append, poll=0.01).release()
        taken.append(True)

    thread = threading.Thread(target=second)
    thread.start()
    time.sleep(0.1)
    assert waits
    assert not taken
    first.release()
    thread.join(5)
    assert taken


def test_a_dead_owner_is_replaced_at_once(place: Path, holder: subprocess.Popen[str]) -> None:
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    acquire(place, on_wait=give_up).release()


def test_a_zombie_is_dead(place: Path, holder: subprocess.Popen[str]) -> None:
    os.kill(holder.pid, signal.SIGKILL)
    os.waitid(os.P_PID, holder.pid, os.WEXITED | os.WNOWAIT)
    acquire(place, on_wait=give_up).release()


def test_children_with_the_descriptor_hold_on_until_they_are_gone(place: Path) -> None:
    child = (
        "import subprocess as s; c = s.Popen(['sleep', '60'], pass_fds=[lease.fd]); print(c.pid, flush=True)"
    )
    script = HOLD.format(more=child)
    with subprocess.Popen(
        [sys.executable, "-c", script, str(place)], stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        orphan = int(owner.stdout.readline())
        owner.stdout.readline()
        owner.kill()
    with pytest.raises(GaveUpError):
        acquire(place, on_wait=give_up)
    os.kill(orphan, signal.SIGKILL)
    acquire(place, on_wait=lambda _: time.sleep(0.01), poll=0.01).release()


@pytest.mark.parametrize("change", [{"boot": "another"}, {"start": 1}, {"pid": 2**22 + 1}])
def test_a_pid_alone_names_nobody(place: Path, change: dict[str, object]) -> None:
    write_lease(place, replace(Holder.this_process(), **change))
    acquire(place, on_wait=give_up).release()


@pytest.mark.parametrize("change", [{"host": "elsewhere"}, {"namespace": "pid:[1]"}])
def test_an_owner_out_of_sight_is_judged_by_its_heartbeat(place: Path, change: dict[str, object]) -> None:
    stranger = replace(Holder.this_process(), pid=2**22 + 1, token="theirs", **change)
    write_lease(place, stranger, age=1)
    assert holder_of(place, ttl=5) == stranger
    with pytest.raises(GaveUpError):
        acquire(place, on_wait=give_up, ttl=5)
    write_lease(place, stranger, age=6)
    assert holder_of(place, ttl=5) is None
    acquire(place, on_wait=give_up, ttl=5).release()


def test_a_stale_lease_has_one_heir(place: Path) -> None:
    write_lease(place, replace(Holder.this_process(), host="elsewhere", token="theirs"), age=100)
    heirs: list[str] = []

    def inherit() -> None:
        try:
            heirs.append(acquire(place, on_wait=give_up).holder.token)
        except GaveUpError:
            pass

    threads = [threading.Thread(target=inherit) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(heirs) == 1
    assert json.loads(place.with_name("key.lease").read_text())["token"] == heirs[0]


def test_one_heir_even_where_locks_lie(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", lambda fd, how: None)
    first = acquire(place)
    with pytest.raises(GaveUpError):
        acquire(place, on_wait=give_up)
    first.release()
    for _ in range(20):
        test_a_stale_lease_has_one_heir(place)


def test_a_cut_lease_file_counts_as_a_stranger(place: Path) -> None:
    lease = write_lease(place, Holder.this_process())
    lease.write_text("{")
    with pytest.raises(GaveUpError, match="unknown host"):
        acquire(place, on_wait=give_up, ttl=5)
    os.utime(lease, (0, 0))
    acquire(place, on_wait=give_up, ttl=5).release()


def test_whoever_slept_too_long_learns_that_he_lost(place: Path) -> None:
    lease = acquire(place, ttl=0.1)
    write_lease(place, replace(Holder.this_process(), host="elsewhere", token="theirs"))
    with pytest.raises(StoreBusy, match="elsewhere"):
        lease.check()
    assert lease.lost
    lease.release()
    assert json.loads(place.with_name("key.lease").read_text())["token"] == "theirs"


def test_the_heartbeat_notices_the_loss_by_itself(place: Path) -> None:
    lease = acquire(place, ttl=0.05)
    place.with_name("key.lease").unlink()
    deadline = time.monotonic() + 5
    while not lease.lost and time.monotonic() < deadline:
        time.sleep(0.01)
    assert lease.lost
    lease.release()


KILLED_AT_LINK = """
import os, signal, sys
from pathlib import Path
from elf.cache.lease import acquire
os.link = lambda *names: os.kill(os.getpid(), signal.SIGKILL)
acquire(Path(sys.argv[1]))
"""


def test_what_a_killed_process_left_of_its_attempt_is_swept_away(place: Path) -> None:
    subprocess.run([sys.executable, "-c", KILLED_AT_LINK, str(place)], check=False)
    assert [path.name for path in place.parent.iterdir() if path.name.startswith(".tmp-")]
    acquire(place, on_wait=give_up).release()
    assert [path.name for path in place.parent.iterdir()] == ["key.lock"]


def test_whoever_was_swept_away_tries_again(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link, tries = os.link, []

    def swept_once(source: Path, target: Path) -> None:
        if not tries:
            tries.append(source)
            source.unlink()
        link(source, target)

    monkeypatch.setattr(os, "link", swept_once)
    acquire(place, poll=0.01).release()
    assert tries
