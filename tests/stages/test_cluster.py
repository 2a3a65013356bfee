"""Parts over Dask workers: each done once and whole, refusals told, nobody left behind."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Generator
from contextlib import nullcontext
from pathlib import Path
from typing import cast

import psutil
import pytest
import torch
import toy_parts
from distributed import Client
from toy_encoders import Case, make_case, make_t5, pairs, texts, tree

from elf.pipeline.errors import Failed, Misconfigured
from elf.pipeline.stage import Compute
from elf.stages import encode
from elf.stages.cluster import do_parts, local_workers, named_scheduler, own_gpu
from elf.stages.config import Encode

MANY = Encode(shard_bytes=2500)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Generator[Client]:
    with local_workers(2, 1, tmp_path_factory.mktemp("cluster") / "scratch") as client:
        yield client


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return make_case(tmp_path_factory.mktemp("pairs"), make_t5(), pairs(20), length=16, max_source=6)


def run(case: Case, out: str, **compute: object) -> object:
    settings = Compute.model_validate({"device": "cpu", "threads": 1, "batch_tokens": 48, **compute})
    return encode.run(MANY, case.context(out, settings))


def address(client: Client) -> str:
    return str(client.scheduler_info()["address"])


def test_every_part_is_done_and_counted_once(client: Client, tmp_path: Path) -> None:
    told: list[int] = []
    names = [f"part-{number}" for number in range(7)]
    do_parts(client, toy_parts.write, tmp_path, names, told.append)
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    assert sum(told) == 70
    assert str(os.getpid()) not in {path.read_text() for path in tmp_path.iterdir()}


def test_workers_keep_freed_memory_and_their_threads(client: Client, tmp_path: Path) -> None:
    do_parts(client, toy_parts.environment, tmp_path, ["one"], lambda amount: None)
    assert (tmp_path / "one").read_text() == "17179869184 8589934592 1 1"


def test_each_worker_of_a_host_has_a_gpu_of_its_own(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    do_parts(client, toy_parts.name, tmp_path, [f"part-{number}" for number in range(8)], lambda amount: None)
    names = {path.read_text() for path in tmp_path.iterdir()}
    assert names == {"int 0", "int 1"}, "workers are numbered"
    taken: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "device", lambda index: taken.append(index) or nullcontext())
    for worker in (0, 1, 2, "tcp://10.0.0.1:4242"):
        with own_gpu(worker):
            pass
    assert taken == [0, 1, 0], "one that was started elsewhere takes what it sees"


def test_a_part_whose_worker_died_is_done_again(client: Client, tmp_path: Path) -> None:
    told: list[int] = []
    do_parts(client, toy_parts.die_once, tmp_path, ["fine", "fatal", "good"], told.append)
    assert all((tmp_path / name).exists() for name in ("fine", "fatal", "fatal.tried", "good"))
    assert sum(told) == 30


def test_a_refusal_is_told_in_its_own_words_and_not_tried_again(client: Client, tmp_path: Path) -> None:
    with pytest.raises(Failed, match=r"^Row 3 cannot be stored\.$"):
        do_parts(client, toy_parts.refuse, tmp_path, ["wrong", *map(str, range(40))], lambda amount: None)
    assert (tmp_path / "wrong.attempts").read_text() == "x"
    assert len(list(tmp_path.iterdir())) < 40


def test_what_nobody_expected_is_tried_again_and_then_raised(client: Client, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="unexpected"):
        do_parts(client, toy_parts.break_down, tmp_path, ["one"], lambda amount: None)
    assert (tmp_path / "one.attempts").read_text() == "xxx"


def test_any_number_of_workers_writes_the_same_bytes(case: Case, client: Client) -> None:
    """Batches of three rows in shards of other sizes: here, and on the two workers of a named scheduler."""
    facts = run(case, "alone", workers=1)
    assert run(case, "two", scheduler=address(client)) == facts
    assert tree(case.folder / "two") == tree(case.folder / "alone")


@pytest.mark.slow
@pytest.mark.parametrize("trial", range(5))
def test_workers_whose_batches_straddle_shards_write_the_same_bytes_each_time(
    case: Case, client: Client, trial: int
) -> None:
    facts = run(case, "alone", workers=1)
    assert run(case, f"trial {trial}", scheduler=address(client), batch_tokens=48 + 16 * trial) == facts
    assert tree(case.folder / f"trial {trial}") == tree(case.folder / "alone")


def test_a_plan_in_which_two_tasks_have_one_part_is_refused_when_it_is_made(
    client: Client, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="3 tasks for 2 parts"):
        do_parts(client, toy_parts.write, tmp_path, ["one", "two", "one"], lambda amount: None)
    assert list(tmp_path.iterdir()) == []


def test_everything_listens_on_this_machine_only(client: Client) -> None:
    ours = [psutil.Process(), *psutil.Process().children(recursive=True)]
    listening = [
        each.laddr.ip
        for process in ours
        for each in process.net_connections("inet")
        if each.status == "LISTEN"
    ]
    assert len(listening) >= 3, "a scheduler and two workers"
    assert set(listening) <= {"127.0.0.1", "::1"}


def test_a_worker_killed_while_it_encodes_changes_nothing(case: Case, client: Client) -> None:
    workers = list(cast("dict[str, int]", client.run(os.getpid)).values())
    killer = subprocess.Popen(["sh", "-c", f"sleep 0.15; kill -9 {workers[0]}"])
    facts = run(case, "killed", scheduler=address(client))
    killer.wait()
    assert facts == run(case, "unharmed", workers=1)
    assert tree(case.folder / "killed") == tree(case.folder / "unharmed")


LOGGING = """
import sys
from pathlib import Path

if __name__ == "__main__":
    from prefect.logging.configuration import setup_logging
    setup_logging()  # before Dask is imported, as in a flow
    import toy_parts
    from elf.stages.cluster import do_parts, local_workers
    out = Path(sys.argv[1])
    with local_workers(1, 1, out / "scratch") as client:
        do_parts(client, toy_parts.write, out, ["one"], lambda amount: None)
"""


@pytest.mark.slow
def test_dask_says_nothing_to_a_log_that_takes_everything(tmp_path: Path) -> None:
    script = tmp_path / "logging_first.py"
    script.write_text(LOGGING)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "one").exists()
    assert "distributed" not in done.stdout + done.stderr


def test_a_scheduler_that_goes_away_is_told(tmp_path: Path) -> None:
    """Its process is killed while it works."""
    command = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0"]
    scheduler = subprocess.Popen(
        [*command, "--no-dashboard", "--scheduler-file", str(tmp_path / "scheduler.json")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until((tmp_path / "scheduler.json").exists, 60)
        address = json.loads((tmp_path / "scheduler.json").read_text())["address"]
        with pytest.raises(Failed, match="has no worker"), named_scheduler(address):
            pass
        with Client(address, set_as_default=False) as client:
            threading.Timer(0.5, scheduler.kill).start()
            with pytest.raises(Failed, match="went away while the work was going on"):
                do_parts(client, toy_parts.write, tmp_path, ["one"], lambda amount: None)
    finally:
        scheduler.kill()
        scheduler.wait()


def test_a_scheduler_that_does_not_answer_is_named() -> None:
    with (
        pytest.raises(Misconfigured, match=r"tcp://127\.0\.0\.1:1 \(compute\.encode\.scheduler\)"),
        named_scheduler("tcp://127.0.0.1:1", patience="1s"),
    ):
        pass


DRIVER = textwrap.dedent(
    """
    import sys
    from pathlib import Path
    from elf.cache.manifest import Manifest
    from elf.cache.store import Artifact
    from elf.pipeline.progress import LineProgress
    from elf.pipeline.stage import Compute, StageContext
    from elf.stages import encode, encoding
    from elf.stages.config import Encode

    def artifact(path):
        return Artifact(path, Manifest.from_json((path / "manifest.json").read_text()))

    if __name__ == "__main__":
        folder, out, workers = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
        out.mkdir(exist_ok=True)
        inputs = {role: artifact(folder / role) for role in ("tokens", "encoder")}
        compute = Compute(device="cpu", threads=1, workers=workers, batch_tokens=16)
        encode.run(Encode(shard_bytes=2500), StageContext(out, inputs, compute, LineProgress(every=0)))
    """
)


def start(case: Case, out: Path, workers: int) -> subprocess.Popen[bytes]:
    script = case.folder / "driver.py"
    script.write_text(DRIVER)
    command = [sys.executable, str(script), str(case.folder), str(out), str(workers)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)


def session_of(leader: int) -> list[int]:
    """Processes of a session that are not zombies."""
    found: list[int] = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[3]) == leader and fields[0] != "Z":
            found.append(int(path.parent.name))
    return found


def wait_until(true, seconds: float) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


def kill_after(case: Case, out: Path, shards: int, workers: int) -> None:
    """kill -9 the encode once ``shards`` shards are finished; then nothing of it may be left running."""
    process = start(case, out, workers)
    try:
        wait_until(lambda: len(list(out.glob("plain/parts/*.json"))) >= shards, 120)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        wait_until(lambda: not session_of(process.pid), 10)
    finally:
        for left in session_of(process.pid):
            os.kill(left, signal.SIGKILL)


def check_kills(folder: Path, shards: list[int], workers: int) -> None:
    case = make_case(folder, make_t5(), texts(60))
    facts = run(case, "undisturbed", workers=1)
    for moment in shards:
        out = folder / f"killed-{moment}"
        kill_after(case, out, moment, workers)
        assert run(case, out.name, workers=1) == facts
        assert tree(out) == tree(folder / "undisturbed")


@pytest.mark.slow
def test_a_killed_encode_leaves_no_worker_and_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    check_kills(tmp_path, [1], workers=2)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_kills_at_many_moments(tmp_path: Path, workers: int) -> None:
    check_kills(tmp_path, [0, 1, 3, 7, 12, 20], workers)
