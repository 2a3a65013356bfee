"""What nothing reaches goes and nothing else does, whoever reads, builds, pins, links or kills meanwhile."""

import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stored import DAY, describe, finished, half_build, key_of, link, listing, put, set_age

from elf.cache.collecting import survey
from elf.cache.collector import collecting
from elf.cache.errors import CacheError, Damaged, StoreBusy
from elf.cache.lease import TTL, Holder
from elf.cache.manifest import Manifest
from elf.cache.pins import pin
from elf.cache.store import Store
from elf.cache.uses import Place, users

WEEK = 7 * DAY
MEMORY = Path("/dev/shm")
STAGES = ("fetch", "encode", "train")


@dataclass(frozen=True, slots=True)
class Node:
    """One artifact of a made-up store: which of the ones before it it was made from, and what keeps it."""

    inputs: frozenset[int]
    keeper: str | None


@st.composite
def graphs(draw: st.DrawFn) -> list[Node]:
    nodes: list[Node] = []
    for number in range(draw(st.integers(1, 7))):
        inputs = draw(st.frozensets(st.integers(0, number - 1), max_size=3)) if number else frozenset[int]()
        keeper = draw(
            st.sampled_from([None, None, None, "pin", "run", "young", "hold", "builder", "unfinished"])
        )
        nodes.append(Node(inputs, keeper))
    return nodes


def place_of(number: int) -> Place:
    return STAGES[number % 3], key_of(f"node {number}")


def keep_by(store: Store, runs: Path, number: int, keeper: str | None) -> Iterator[object]:
    """Do what keeps a node; what must be left open is yielded."""
    place = place_of(number)
    if keeper == "pin":
        pin(store.root, place)
    elif keeper == "run":
        link(runs, f"tiny/step-{number}", store.root, place)
    elif keeper == "young":
        set_age(store.root, place, 6)
    elif keeper == "hold":
        yield store.using([place])
    elif keeper == "builder":
        yield store.building("report", key_of(f"report {number}"), uses=[place])
    elif keeper == "unfinished":
        leave_unfinished(store, place)


def leave_unfinished(store: Store, place: Place) -> None:
    """A young half-made folder whose builder was killed while it read an artifact."""
    key = key_of(f"killed {place}")
    lease = store.root / ".building" / "report" / f"{key}.lease"
    with store.building("report", key, uses=[place]) as building:
        (building.path / "part").write_text("half")
        text = lease.read_text()
    lease.write_text(text.replace('"start": ', '"start": 1'))  # another process has its number by now


def reached(nodes: list[Node]) -> set[int]:
    kept = {number for number, node in enumerate(nodes) if node.keeper is not None}
    for number in reversed(range(len(nodes))):
        if number in kept:
            kept |= nodes[number].inputs
    return kept


@settings(max_examples=8, deadline=None)
@given(graphs())
def test_what_is_reached_stays_and_the_rest_goes(nodes: list[Node]) -> None:
    check_graph(nodes)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(graphs())
def test_of_many_more_stores_what_is_reached_stays(nodes: list[Node]) -> None:
    check_graph(nodes)


def check_graph(nodes: list[Node]) -> None:
    """Make the store, collect, and look at what is left."""
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        store, runs = Store(Path(folder) / "store"), Path(folder) / "runs"
        for number, node in enumerate(nodes):
            put(store.root, place_of(number), inputs=[place_of(each) for each in node.inputs], age=8)
        contexts = [
            context
            for number, node in enumerate(nodes)
            for context in keep_by(store, runs, number, node.keeper)
        ]
        for context in contexts:
            context.__enter__()  # type: ignore[attr-defined]
        for number, node in enumerate(nodes):
            if node.keeper != "young":
                set_age(store.root, place_of(number), 8)  # it is the lease that keeps it
        before = listing(store.root)
        wanted = {place_of(number) for number in reached(nodes)}
        told = survey(store, grace=WEEK, runs=[runs])
        assert listing(store.root) == before
        assert {item.place for item in told.items if item.kind == "artifact" and item.kept} == wanted
        with collecting(store, grace=WEEK, runs=[runs]) as collector:
            assert [collector.remove(item) for item in collector.survey.removable] == [None] * (
                len(nodes) - len(wanted)
            )
        assert finished(store.root) == wanted
        for context in contexts:
            context.__exit__(None, None, None)  # type: ignore[attr-defined]


def collect(store: Store, *, grace: float = WEEK, runs: tuple[Path, ...] = ()) -> list[str | None]:
    with collecting(store, grace=grace, runs=runs) as collector:
        return [collector.remove(item) for item in collector.survey.removable]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder for which nothing waits for a disk, where there is one."""
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        yield Path(folder)


def chain(store: Store) -> tuple[Place, Place]:
    """An old encode made from an old fetch."""
    first = put(store.root, ("fetch", key_of("text")), age=30)
    return first, put(store.root, ("encode", key_of("rows")), inputs=[first], age=30)


def test_unfinished_builds_go_when_old_and_nobody_builds_them(store: Store) -> None:
    places = [("encode", key_of(f"build {number}")) for number in range(4)]
    old, again = (
        half_build(store.root, places[0], age=8),
        half_build(store.root, places[0], age=8, suffix=".again"),
    )
    young, built = half_build(store.root, places[1], age=6), half_build(store.root, places[2], age=8)
    old_copy = half_build(store.root, places[3], age=0, suffix=f".old-{'0' * 32}")
    with store.building(*places[2]):
        assert collect(store) == [None] * 3
        assert young.exists()
        assert built.exists()
    assert not old.exists()
    assert not again.exists()
    assert not old_copy.exists()
    with store.building(*places[2]) as building:
        assert not building.fresh


@pytest.mark.parametrize("how", ["pinned", "used", "linked", "held"])
def test_what_is_wanted_again_after_the_survey_stays_with_its_inputs(
    store: Store, tmp_path: Path, how: str
) -> None:
    first, second = chain(store)
    third = put(store.root, ("encode", key_of("others")), inputs=[first], age=30)
    runs = tmp_path / "runs"
    runs.mkdir()
    with collecting(store, grace=WEEK, runs=[runs]) as collector:
        assert {item.place for item in collector.survey.removable} == {first, second, third}
        if how == "pinned":
            pin(store.root, second)
        elif how == "used":
            with store.using([second]):
                pass
        elif how == "linked":
            link(runs, "tiny/encode", store.root, second)
        hold = store.using([second] if how == "held" else [])
        hold.__enter__()
        if how == "held":
            set_age(store.root, second, 30)
        said = {item.place: collector.remove(item) for item in collector.survey.removable}
        hold.__exit__(None, None, None)
    assert finished(store.root) == {first, second}
    assert said[third] is None
    assert said[first] == "an input of what stays"


def test_a_second_collector_is_told_who_collects(store: Store) -> None:
    chain(store)
    with collecting(store, grace=WEEK), pytest.raises(StoreBusy, match=r"being collected by process \d+"):
        collect(store)
    assert collect(store) == [None, None]


READER = """
import sys
from pathlib import Path
from elf.cache.manifest import Fingerprint
from elf.cache.store import Store
root, stage, key = sys.argv[1:]
with Store(Path(root)).using([(stage, Fingerprint(key))]):
    print("reads", flush=True)
    sys.stdin.readline()
"""


def test_what_another_process_reads_stays_until_it_is_done(store: Store) -> None:
    first, second = chain(store)
    arguments = [sys.executable, "-c", READER, str(store.root), *second]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "reads\n"
        for place in (first, second):
            set_age(store.root, place, 30)
        assert collect(store) == []
        reader.communicate("\n", timeout=60)
    assert collect(store) == []  # used a moment ago
    set_age(store.root, second, 30)
    assert collect(store) == [None, None]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None
        reader.stdout.readline()
        reader.kill()
    chain(store)
    assert collect(store) == [None, None]  # a reader that is dead reads nothing


@pytest.mark.parametrize(("age", "stays"), [(0.0, True), (2 * TTL, False)])
def test_what_another_host_reads_stays_for_as_long_as_its_heart_beats(
    store: Store, age: float, stays: bool
) -> None:
    first, second = chain(store)
    holder = Holder(
        "elsewhere", "another boot", "pid:[1]", 1, 1, "token", ("elf", "run"), ("/".join(second),)
    )
    lease = store.root / ".holds" / "theirs.lease"
    lease.parent.mkdir()
    lease.write_text(json.dumps(asdict(holder)))
    then = time.time() - age
    os.utime(lease, (then, then))
    assert collect(store) == ([] if stays else [None, None])
    assert finished(store.root) == ({first, second} if stays else set())
    assert lease.exists() is stays


def test_a_reader_waits_while_a_collector_judges_what_it_wants(store: Store) -> None:
    second = chain(store)[1]
    doomed = store.root / ".collecting" / "doomed"
    reading, read = threading.Event(), threading.Event()

    def reads() -> None:
        reading.set()
        with Store(store.root).using([second]):
            read.set()

    reader = threading.Thread(target=reads)
    with collecting(store, grace=WEEK):
        doomed.write_text("/".join(second))
        reader.start()
        assert reading.wait(60)
        assert not read.wait(0.2)
        assert any("/".join(second) in holder.uses for holder in users(store.root))
        doomed.unlink()
        assert read.wait(60)
    reader.join()
    doomed.write_text("/".join(second))  # of a collector that was killed
    with store.using([second]):
        pass


@pytest.mark.slow
def test_no_reader_loses_a_file_while_it_reads(memory: Path) -> None:
    store = Store(memory / "store")
    place: Place = "encode", key_of("rows")
    deadline = time.monotonic() + 60
    read: list[bool] = []
    faults: list[BaseException] = []
    removed: list[str | None] = []
    over = threading.Event()

    def reads() -> None:
        own = Store(store.root)
        try:
            while not over.wait(0.03):
                with own.using([place]):
                    found = own.find(*place)
                    if found is not None:
                        for _ in range(3):
                            assert (found.path / "a").read_text() == "payload"
                            time.sleep(0.001)
                        read.append(True)
        except BaseException as fault:
            faults.append(fault)

    def builds() -> None:
        own = Store(store.root)
        while not over.wait(0.002):
            if own.find(*place) is not None:
                continue
            with own.building(*place) as building:
                if own.find(*place) is None:
                    (building.path / "a").write_text("payload")
                    own.commit(building, describe_in(building.path, place))

    threads = [threading.Thread(target=target) for target in (reads, reads, builds)]
    for thread in threads:
        thread.start()
    try:
        while not faults and (removed.count(None) < 3 or len(read) < 3) and time.monotonic() < deadline:
            removed += collect(store, grace=0.0)
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert faults == []
    assert len(read) >= 3
    assert removed.count(None) >= 3


def describe_in(folder: Path, place: Place) -> Manifest:
    manifest = describe(folder, place)
    (folder / "manifest.json").unlink()
    return manifest


KILLED = """
import os, shutil, signal, sys, time
from pathlib import Path
from elf.cache.collector import collecting
from elf.cache.records import check_files
from elf.cache.store import Store
sys.path.insert(0, sys.argv[2])
from stored import finished, half_build, key_of, put

EVENTS = ("os.rename", "os.remove", "os.rmdir", "os.link", "os.utime", "os.mkdir")

def fill(root):
    first = put(root, ("fetch", key_of("text")), age=30)
    second = put(root, ("encode", key_of("rows")), inputs=[first], age=30)
    half_build(root, ("encode", key_of("half")), age=30)
    put(root, ("train", key_of("kept")))
    return {first, second}

def collect(root, die_at):
    counted = [0]
    def heard(event, arguments):
        if event not in EVENTS:
            return
        counted[0] += 1
        if counted[0] == die_at:
            os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(heard)
    with collecting(Store(root), grace=86400.0) as collector:
        for item in collector.survey.removable:
            collector.remove(item)

base, step = Path(sys.argv[1]), int(sys.argv[3])
moment = kills = 0
while True:
    moment += step
    root = base / str(moment)
    old = fill(root)
    child = os.fork()
    if child == 0:
        collect(root, moment)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    store = Store(root)
    for artifact in store.artifacts():
        check_files(artifact.path, artifact.manifest, deep=True)
        for key in artifact.manifest.inputs.values():
            assert next(root.glob(f"fetch/{key}/manifest.json"), None), "an artifact outlived what it was made from"
    if code == 0:
        break
    assert code == -signal.SIGKILL, code
    kills += 1
    child = os.fork()
    if child == 0:
        collect(root, 0)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert finished(root) == {("train", key_of("kept"))}, finished(root)
    assert not list(root.glob(".trash/*"))
    assert not list(root.glob(".building/*/*[0-9a-f]"))
    assert not list(root.glob(".collecting/doomed"))
print(kills)
"""


@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_a_collector_killed_at_any_moment_leaves_whole_artifacts_and_the_next_one_finishes(
    memory: Path, step: int
) -> None:
    support = Path(__file__).parent.parent / "support"
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(memory), str(support), str(step)],
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 30 // step


def test_while_something_kept_is_damaged_nothing_is_removed(store: Store) -> None:
    first, second = chain(store)
    pin(store.root, second)
    path = store.root / second[0] / second[1] / "manifest.json"
    path.write_text(path.read_text()[:100])
    with pytest.raises(Damaged, match=second[1]):
        collect(store)
    assert finished(store.root) == {first, second}


@pytest.mark.parametrize("folder", [".pins/train", ".roots", ".holds", ".building/train", "train"])
def test_nothing_is_surveyed_where_something_cannot_be_read(store: Store, folder: str) -> None:
    """A link to itself stands for what this user may not read; the tests may run as root, who reads everything."""
    path = store.root / folder
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(path, ignore_errors=True)
    path.symlink_to(path)
    with pytest.raises(CacheError, match=f"{path} cannot be read"):
        survey(store, grace=0)


def test_what_is_damaged_and_not_wanted_goes(store: Store) -> None:
    second = chain(store)[1]
    path = store.root / second[0] / second[1] / "manifest.json"
    path.write_text("")
    set_age(store.root, second, 30)
    stray = store.root / "train" / key_of("stray")
    stray.parent.mkdir()
    stray.write_text("a file where a folder belongs")
    os.utime(stray, (0, 0))
    assert collect(store) == [None, None, None]
    assert finished(store.root) == set()


def test_what_a_link_in_the_store_leads_to_is_not_touched(store: Store, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    put(elsewhere, ("encode", key_of("rows")), age=30)
    store.root.mkdir()
    (store.root / "encode").symlink_to(elsewhere / "encode")
    (store.root / "train").mkdir()
    (store.root / "train" / key_of("rows")).symlink_to(elsewhere / "encode" / key_of("rows"))
    before = listing(elsewhere)
    assert collect(store) == []
    assert listing(elsewhere) == before


def test_what_a_wanted_link_was_made_from_is_not_known_and_stays(store: Store, tmp_path: Path) -> None:
    first, second = chain(store)
    pin(store.root, second)
    path = store.root / second[0] / second[1]
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Damaged, match="link"):
        collect(store)
    assert first in finished(store.root)


@pytest.mark.parametrize("how", ["builds", "reads"])
def test_what_was_used_until_something_failed_was_used_lately(store: Store, how: str) -> None:
    first, second = chain(store)
    uses = [first, second]
    keeping = store.using(uses) if how == "reads" else store.building("report", key_of("r"), uses=uses)

    def fail_late() -> None:
        with keeping:
            for place in uses:
                set_age(store.root, place, 30)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail_late()
    assert collect(store) == []
    assert finished(store.root) == {first, second}


def test_an_empty_store_is_no_error(store: Store) -> None:
    assert survey(store, grace=0.0).items == ()
    assert collect(store) == []


def test_the_order_is_from_results_to_inputs(store: Store) -> None:
    made: list[Place] = []
    for number in range(5):
        made.append(put(store.root, place_of(number), inputs=made[-1:], age=30))
    order = [item.place for item in survey(store, grace=WEEK).removable]
    assert order == made[::-1]
    assert all(a != b for a, b in itertools.pairwise(order))
