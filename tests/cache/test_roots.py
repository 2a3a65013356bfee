"""Folders of runs are known to the store wherever they lie, and one that cannot be seen still keeps what it reached."""

import json
import shutil
import socket
import subprocess
from pathlib import Path

import pytest
from stored import DAY, finished, key_of, link, put, set_age

from elf.cache.collecting import survey
from elf.cache.collector import collecting
from elf.cache.errors import Damaged
from elf.cache.roots import forget, known_folders, links_in, remember
from elf.cache.store import Store
from elf.cache.uses import Place


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "host" / "store")


def run(store: Store, runs: Path, name: str = "tiny/encode") -> Place:
    """An old artifact that a run leads to, as the end of a run leaves it."""
    place = put(store.root, ("encode", key_of(f"{runs} {name}")), age=30)
    remember(store.root, runs, {name: place})
    link(runs, name, store.root, place)
    return place


def left(store: Store) -> set[Place]:
    """What a collection leaves that knows no folder but those the store remembers."""
    with collecting(store, grace=DAY) as collector:
        for item in collector.survey.removable:
            collector.remove(item)
    return finished(store.root)


def test_what_runs_elsewhere_reach_stays_until_the_run_goes(store: Store, tmp_path: Path) -> None:
    mine, theirs = run(store, tmp_path / "mine" / "runs"), run(store, tmp_path / "theirs" / "runs")
    assert left(store) == {mine, theirs}
    shutil.rmtree(tmp_path / "theirs" / "runs" / "tiny")
    assert left(store) == {mine}
    assert all(folder.seen for folder in known_folders(store.root))


def test_a_folder_that_cannot_be_seen_keeps_what_it_reached_until_it_is_forgotten(
    store: Store, tmp_path: Path
) -> None:
    runs = tmp_path / "disk" / "runs"
    place = run(store, runs)
    (tmp_path / "disk").rename(tmp_path / "unmounted")
    assert left(store) == {place}
    [folder] = known_folders(store.root)
    assert (folder.path, folder.host, folder.seen) == (runs, socket.gethostname(), False)
    assert forget(store.root, tmp_path / "other") == 0
    assert forget(store.root, runs) == 1
    assert left(store) == set()


def test_a_folder_of_the_same_path_on_another_host_is_not_taken_for_it(store: Store, tmp_path: Path) -> None:
    runs = tmp_path / "home" / "runs"
    place = run(store, runs)
    (tmp_path / "home").rename(tmp_path / "the other host's home")
    other = run(store, runs, "else/encode")
    assert left(store) == {place, other}
    assert sorted(folder.seen for folder in known_folders(store.root)) == [False, True]
    assert forget(store.root, runs) == 1
    assert left(store) == {other}


def test_a_copy_of_a_project_and_the_project_are_two(store: Store, tmp_path: Path) -> None:
    place = run(store, tmp_path / "host" / "a" / "runs")
    shutil.copytree(tmp_path / "host" / "a", tmp_path / "host" / "b", symlinks=True)
    other = run(store, tmp_path / "host" / "b" / "runs", "more/encode")
    shutil.rmtree(tmp_path / "host" / "b" / "runs" / "tiny")
    assert left(store) == {place, other}
    assert len(known_folders(store.root)) == 2


def test_runs_moved_together_with_their_store_are_seen(store: Store, tmp_path: Path) -> None:
    kept, gone = run(store, tmp_path / "host" / "runs"), run(store, tmp_path / "host" / "runs", "old/encode")
    (tmp_path / "host").rename(tmp_path / "moved")
    moved = Store(tmp_path / "moved" / "store")
    assert [(each.path, each.seen) for each in known_folders(moved.root)] == [
        (tmp_path / "moved" / "runs", True)
    ]
    shutil.rmtree(tmp_path / "moved" / "runs" / "old")
    assert left(moved) == {kept} != {kept, gone}


def test_remembering_twice_is_one_folder_and_notes_what_is_new(store: Store, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    first, second = run(store, runs), run(store, runs, "second/encode")
    [record] = (store.root / ".roots").iterdir()
    reached = json.loads(record.read_text())["reached"]
    assert reached == {"tiny/encode": "/".join(first), "second/encode": "/".join(second)}
    before = record.stat().st_mtime_ns
    remember(store.root, runs, {"tiny/encode": first})
    assert record.stat().st_mtime_ns == before


def test_links_are_known_by_stage_and_key_wherever_the_store_is_mounted(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    (runs / "tiny").mkdir(parents=True)
    (runs / "tiny" / "encode").symlink_to(f"/mnt/elsewhere/store/encode/{key_of('a')}")
    (runs / "tiny" / "report.html").symlink_to(f"../../store/report/{key_of('b')}/report.html")
    (runs / "tiny" / ".train.12ab").symlink_to(f"../../store/train/{key_of('c')}")
    assert links_in(runs) == {"tiny/encode": ("encode", key_of("a"))}
    with pytest.raises(FileNotFoundError):
        links_in(tmp_path / "nowhere")


def test_a_damaged_record_stops_everything_that_would_remove(store: Store, tmp_path: Path) -> None:
    place = run(store, tmp_path / "runs")
    [record] = (store.root / ".roots").iterdir()
    record.write_text(record.read_text()[:40])
    with pytest.raises(Damaged, match=r"\.roots.*Run any experiment in that folder again"):
        left(store)
    assert finished(store.root) == {place}
    remember(store.root, tmp_path / "runs", {"tiny/encode": place})
    assert left(store) == {place}


def test_a_store_that_may_not_be_written_is_used_and_remembers_nothing(
    small_disk: Path, tmp_path: Path
) -> None:
    store = Store(small_disk / "store")
    place = put(store.root, ("encode", key_of("a")))
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with store.using([place]):
        assert store.find(*place) is not None
    remember(store.root, tmp_path, {"tiny/encode": place})
    assert known_folders(store.root) == []
    assert [item.place for item in survey(store, grace=0.0).items] == [place]


def test_use_is_noted_when_it_begins_and_when_it_ends(store: Store) -> None:
    used, other = (
        put(store.root, ("encode", key_of("a")), age=30),
        put(store.root, ("encode", key_of("b")), age=30),
    )
    before = store.last_use(*used)
    with store.using([used, ("encode", key_of("not there"))]):
        began = store.last_use(*used)
        assert began > before
        set_age(store.root, used, 30)
    assert store.last_use(*used) >= began
    assert store.last_use(*other) == pytest.approx(before, abs=60)
    assert not (store.root / ".used" / "encode" / key_of("not there")).exists()
    assert list((store.root / ".holds").iterdir()) == []
