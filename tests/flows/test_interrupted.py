"""Runs that are told to stop, lose a worker, or find the disk full or read-only: one sentence, nothing lost."""

import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from commands import call, contents, copy_store, half_made, keys, start, wait_for_the_end
from forked_elf import ForkedElf, said
from touches import Moment

WORDS = {
    signal.SIGTERM: (143, "elf: terminated; the same command goes on"),
    signal.SIGINT: (130, "elf: interrupted; the same command goes on"),
}
WORKERS = ("--set", "compute.encode.workers=2")
TOKENIZERS = ("--set", "compute.tokenize.workers=2")
SAMPLERS = ("--set", "compute.sample.processes=2", "--set", "compute.sample.batch=2")
SMALLEST, GROWTH = 400_000, 1.6
"""Bytes of the first full disk, and what each next one is larger by."""


@pytest.mark.slow
@pytest.mark.parametrize("number", WORDS)
@pytest.mark.parametrize(
    ("step", "at", "settings"),
    [
        ("tokenize", 30, TOKENIZERS),
        ("pretrain", 40, ()),
        ("encode-validation", 60, WORKERS),
        ("train", 120, ()),
        ("train", 12, ()),
        ("sample-sde", 60, SAMPLERS),
    ],
)
def test_told_to_stop(
    number: signal.Signals, step: str, at: int, settings: tuple[str, ...], whole: Path, tmp_path: Path
) -> None:
    key = keys(whole)[step]
    folder = tmp_path.resolve()
    store = copy_store(whole / "store", folder / "store", without=[key])
    victim = "group" if number == signal.SIGINT else "top"
    moment = Moment(str(folder / "touches.txt"), str(store), key, at=at, victim=victim, number=number)
    arguments = ("run", "tiny", "--only", step, *settings)
    process = start(folder, *arguments, **moment.environment())
    _, err = process.communicate(timeout=120)
    ended = time.monotonic()
    code, words = WORDS[number]
    assert process.returncode == code, err
    assert "Traceback" not in err
    assert err.rstrip().splitlines()[-1] == words
    assert not (store / key).exists()
    wait_for_the_end(folder, 10 - (time.monotonic() - ended))
    call(folder, *arguments)
    assert contents(store) == contents(whole / "store")
    assert not half_made(store)


@pytest.mark.slow
@pytest.mark.parametrize("at", [5, 60])
def test_a_killed_dask_worker_is_replaced(at: int, whole: Path, tmp_path: Path) -> None:
    key = keys(whole)["encode-validation"]
    folder = tmp_path.resolve()
    store = copy_store(whole / "store", folder / "store", without=[key])
    moment = Moment(str(folder / "touches.txt"), str(store), f"{key}/plain", at=at, victim="worker")
    call(folder, "run", "tiny", "--only", "encode-validation", *WORKERS, **moment.environment())
    assert (folder / "touches.txt.hit").exists(), "no worker was killed"
    wait_for_the_end(folder, 10)
    assert contents(store) == contents(whole / "store")
    assert not half_made(store)


@pytest.mark.slow
def test_a_dask_worker_killed_as_it_starts_is_told(whole: Path, tmp_path: Path) -> None:
    key = keys(whole)["encode-validation"]
    folder = tmp_path.resolve()
    store = copy_store(whole / "store", folder / "store", without=[key])
    moment = Moment(str(folder / "touches.txt"), str(store), f"{key}/scratch", at=1, victim="worker")
    arguments = ("run", "tiny", "--only", "encode-validation", *WORKERS)
    process = start(folder, *arguments, **moment.environment())
    _, err = process.communicate(timeout=120)
    assert process.returncode == 1, err
    assert "elf: The worker processes of encode did not all start" in err
    assert "Traceback" not in err
    wait_for_the_end(folder, 10)
    call(folder, *arguments)
    assert contents(store) == contents(whole / "store")
    assert not half_made(store)


@pytest.fixture
def forked() -> Iterator[ForkedElf]:
    server = ForkedElf()
    yield server
    server.close()


@contextmanager
def disk(place: Path, size: int) -> Iterator[None]:
    """A file system of ``size`` bytes; skips where nobody may mount one."""
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size},nr_inodes=0", "tmpfs", str(place)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"a small disk cannot be mounted here: {mounted.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", str(place)], check=True)


def remount(place: Path, option: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{option}", str(place)], check=True)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_full_disks_of_growing_size(whole: Path, tmp_path: Path, forked: ForkedElf) -> None:
    folder, size = tmp_path.resolve(), SMALLEST
    place = folder / "disk"
    store = place / "store"
    refused: list[str] = []
    with disk(place, size):
        while (code := forked.run(folder, "run", "tiny", "--store", str(store))) != 0:
            if "Nothing was started" not in said(folder):  # it might have fitted, and did not
                complaint = check_complaint(code, said(folder), str(store))
                refused.append(re.search(r"\.building/(\w+)/", complaint)[1])  # type: ignore[index]  # checked before
            assert all((path / "manifest.json").is_file() for path in store.glob("[a-z]*/*"))
            size = int(size * GROWTH)
            assert size < 50_000_000
            remount(place, f"size={size}")
        assert refused
        assert contents(store) == contents(whole / "store")
        assert not half_made(store)


def check_complaint(code: int, text: str, store: str) -> str:
    """One paragraph that says what is full, where, and the cure; returned."""
    assert code == 1, text
    assert "Traceback" not in text
    *_, complaint = text.rstrip().splitlines()
    assert re.match(rf"elf: .*{re.escape(store)}/\.building/", complaint), complaint
    assert re.search(r"disk is full|No space left on device", complaint), complaint
    assert "free some space" in complaint
    assert "not foreseen" not in complaint
    return complaint


@pytest.mark.slow
def test_a_read_only_store_is_read_and_not_written(whole: Path, tmp_path: Path) -> None:
    place = tmp_path / "disk"
    with disk(place, 50_000_000):
        copy_store_whole(whole / "store", place / "store")
        remount(place, "ro")
        arguments = ("run", "tiny", "--store", str(place / "store"))
        assert "all 19 steps reused" in call(tmp_path, *arguments)
        assert (tmp_path / "runs/tiny/report.html").is_file()
        process = start(tmp_path, *arguments, "--set", "train.seed=1")
        _, err = process.communicate(timeout=120)
        assert process.returncode == 1
        assert re.fullmatch(r"elf: Cannot write \S+/store: the file system is read-only .*", err.strip())
        assert "make it writable" in err
        assert (tmp_path / "runs/tiny/report.html").is_file(), "what could not begin takes no name away"


def copy_store_whole(source: Path, target: Path) -> None:
    """To another disk, where no hard link leads."""
    subprocess.run(["cp", "-r", str(source), str(target)], check=True)
