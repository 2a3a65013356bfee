"""An artifact exists whole or not at all, whoever builds, dies, races or lies meanwhile."""

import errno
import fcntl
import itertools
import json
import os
import random
import shutil
import stat
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from damage import reword

from elf.cache import exchange
from elf.cache.errors import CacheError, Damaged, StoreBusy, Unwritable
from elf.cache.lease import Lease, acquire
from elf.cache.manifest import Fingerprint, Manifest
from elf.cache.records import check_files
from elf.cache.store import Artifact, Replaced, Store

Describe = Callable[[Path, str, Fingerprint], Manifest]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def key(named_key: Callable[[str], Fingerprint]) -> Fingerprint:
    return named_key("k")


@pytest.fixture
def build(store: Store, key: Fingerprint, describe: Describe) -> Callable[[], Artifact]:
    def build() -> Artifact:
        with store.building("encode", key) as building:
            fill(building.path)
            return store.commit(building, describe(building.path, "encode", key))

    return build


def fill(path: Path, text: str = "payload") -> None:
    (path / "sub").mkdir(exist_ok=True)
    (path / "sub" / "a.txt").write_text(text)
    (path / "aux").mkdir(exist_ok=True)
    (path / "aux" / "log.txt").write_text("log")


def left_over(store: Store) -> list[str]:
    """What lies in the store beside artifacts and empty lock files."""
    inside = [
        path.relative_to(store.root) for path in (store.root / ".building").rglob("*") if path.is_file()
    ]
    return [str(path) for path in inside if path.suffix != ".lock"]


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o027, 0o640), (0o077, 0o600)])
def test_whoever_may_read_a_store_may_read_all_of_it(
    store: Store, key: Fingerprint, describe: Describe, umask: int, mode: int
) -> None:
    """Some libraries write files for their owner alone."""
    before = os.umask(umask)
    try:
        with store.building("encode", key) as building:
            (building.path / "weights").write_text("numbers")
            (building.path / "weights").chmod(0o600)
            artifact = store.commit(building, describe(building.path, "encode", key))
    finally:
        os.umask(before)
    assert stat.S_IMODE((artifact.path / "weights").stat().st_mode) == mode


def test_what_is_committed_is_found(store: Store, key: Fingerprint, build: Callable[[], Artifact]) -> None:
    assert store.find("encode", key) is None
    artifact = build()
    assert artifact == store.find("encode", key)
    assert artifact.path == store.root / "encode" / key
    check_files(artifact.path, artifact.manifest, deep=True)
    assert list(store.artifacts()) == list(store.artifacts("encode")) == [artifact]
    assert list(store.artifacts("train")) == []
    assert left_over(store) == []


DYING = """
import os, sys
from pathlib import Path
from elf.cache.manifest import Fingerprint, Manifest
from elf.cache.store import Store
left, real = int(sys.argv[4]), os.fsync
def fsync(fd):
    global left
    left -= 1
    if left == 0:
        os._exit(9)
    real(fd)
os.fsync = fsync
store, key = Store(Path(sys.argv[1])), Fingerprint(sys.argv[2])
with store.building("encode", key) as building:
    (building.path / "a.txt").write_text("payload")
    store.commit(building, Manifest.from_json(sys.argv[3]))
"""


def test_a_death_at_any_write_of_publishing_leaves_nothing_behind_the_next_builder(
    store: Store, key: Fingerprint, describe: Describe, tmp_path: Path
) -> None:
    (tmp_path / "described").mkdir()
    (tmp_path / "described" / "a.txt").write_text("payload")
    manifest = describe(tmp_path / "described", "encode", key)
    deaths = 0
    for deaths in itertools.count(1):
        root = tmp_path / str(deaths)
        arguments = [sys.executable, "-c", DYING, str(root), key, manifest.to_json(), str(deaths)]
        if subprocess.run(arguments, check=False).returncode == 0:
            break
        with Store(root).building("encode", key) as building:
            (building.path / "a.txt").unlink(missing_ok=True)  # published, if it died late
        assert left_over(Store(root)) == []
    assert deaths > 3, "the builder died at several moments"


def test_a_half_built_folder_is_no_artifact_and_is_gone_on_from(store: Store, key: Fingerprint) -> None:
    with store.building("encode", key) as building:
        assert building.fresh
        (building.path / "part").write_text("1")
        (building.path / ".tmp-2").write_text("half")
        (building.path / "manifest.json").write_text("{}")
    assert store.find("encode", key) is None
    with store.building("encode", key) as building:
        assert not building.fresh
        assert [path.name for path in building.path.iterdir()] == ["part"]


def test_looking_without_building_leaves_nothing(store: Store, key: Fingerprint) -> None:
    with store.building("encode", key) as building:
        assert building.fresh
    assert left_over(store) == []
    assert not building.path.exists()


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda p: (p / "manifest.json").write_text((p / "manifest.json").read_text()[:300]), "not JSON"),
        (lambda p: (p / "manifest.json").write_text(""), "not JSON"),
        (lambda p: (p / "manifest.json").unlink(), r"no manifest\.json"),
        (lambda p: reword(p / "manifest.json", p.name, "0" * 64), "belongs to encode 000000000000"),
    ],
)
def test_a_damaged_artifact_is_named_with_its_cure(
    store: Store,
    key: Fingerprint,
    build: Callable[[], Artifact],
    harm: Callable[[Path], object],
    message: str,
) -> None:
    harm(build().path)
    with pytest.raises(Damaged, match=f"(?s){key}.*{message}.*--force"):
        store.find("encode", key)
    with pytest.raises(Damaged):
        list(store.artifacts())
    seen: list[Damaged] = []
    assert list(store.artifacts(on_damaged=seen.append)) == []
    assert len(seen) == 1


def test_a_link_in_the_store_is_not_followed(store: Store, key: Fingerprint, tmp_path: Path) -> None:
    (store.root / "encode").mkdir(parents=True)
    (store.root / "encode" / key).symlink_to(tmp_path)
    with pytest.raises(Damaged, match="link"):
        store.find("encode", key)


def test_what_cannot_be_read_is_not_passed_over(
    store: Store, key: Fingerprint, build: Callable[[], Artifact], monkeypatch: pytest.MonkeyPatch
) -> None:
    build()

    def denied(path: Path) -> bytes:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", denied)
    for look in (lambda: store.find("encode", key), lambda: list(store.artifacts())):
        with pytest.raises(CacheError, match=rf"{key}/manifest\.json cannot be read"):
            look()


def test_a_file_is_no_artifact(store: Store, key: Fingerprint) -> None:
    (store.root / "encode").mkdir(parents=True)
    (store.root / "encode" / key).write_text("stray")
    (store.root / "train").write_text("stray")
    for stage in ("encode", "train"):
        with pytest.raises(Damaged, match="not a folder"):
            store.find(stage, key)


@pytest.mark.parametrize("stage", ["../etc", "", ".building", "En", "a/b"])
def test_a_stage_cannot_lead_out_of_the_store(store: Store, key: Fingerprint, stage: str) -> None:
    with pytest.raises(CacheError):
        store.find(stage, key)
    with pytest.raises(CacheError), store.building(stage, key):
        pass
    with pytest.raises(CacheError):
        store.find("encode", Fingerprint("../" + key[3:]))


def test_a_manifest_that_is_not_of_the_folder_is_not_published(
    store: Store, key: Fingerprint, describe: Describe, named_key: Callable[[str], Fingerprint]
) -> None:
    with store.building("encode", key) as building:
        fill(building.path)
        manifest = describe(building.path, "encode", key)
        with pytest.raises(CacheError, match="belong"):
            store.commit(building, describe(building.path, "encode", named_key("other")))
        with pytest.raises(CacheError, match="belong"):
            store.commit(building, describe(building.path, "train", key))
        (building.path / "sub" / "a.txt").write_text("grown since")
        with pytest.raises(CacheError, match=r"a\.txt"):
            store.commit(building, manifest)
        with pytest.raises(CacheError, match="not a folder"):
            store.commit(building.path.parent, manifest)
    assert store.find("encode", key) is None


BUILDER = """
import sys, time
from dataclasses import replace
from pathlib import Path
from elf.cache.store import Store
sys.path.insert(0, sys.argv[1])
from conftest import fill_slowly, key_of, manifest_of
store, key = Store(Path(sys.argv[2])), key_of("k")
with store.building("encode", key) as building:
    found = store.find("encode", key)
    if found is None:
        print("building", flush=True)
        fill_slowly(building.path)
        found = store.commit(building, manifest_of(building.path, "encode", key))
print(found.manifest.content, flush=True)
"""


def builder(store: Store) -> subprocess.Popen[str]:
    arguments = [sys.executable, "-c", BUILDER, str(Path(__file__).parent), str(store.root)]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)


def test_a_manifest_that_could_not_be_read_again_is_not_written(
    store: Store, key: Fingerprint, describe: Describe
) -> None:
    with store.building("encode", key) as building:
        fill(building.path)
        manifest = describe(building.path, "encode", key)
        with pytest.raises(CacheError, match=r"encode [0-9a-f]{12} cannot be written: .*content"):
            store.commit(building, replace(manifest, content="0" * 64))
        with pytest.raises(CacheError, match="not JSON serializable"):
            store.commit(building, replace(manifest, facts={"rows": object()}))  # pyright: ignore[reportArgumentType]


def test_of_many_builders_one_builds_and_the_others_take(store: Store, key: Fingerprint) -> None:
    builders = [builder(store) for _ in range(4)]
    said = "".join(process.communicate(timeout=60)[0] for process in builders).split()
    assert said.count("building") == 1
    assert len(set(said)) == 2
    assert left_over(store) == []


@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_a_builder_killed_at_any_moment_is_continued_to_the_same_content(
    store: Store, key: Fingerprint, tmp_path: Path, kills: int
) -> None:
    undisturbed = Store(tmp_path / "undisturbed")
    content = builder(undisturbed).communicate(timeout=60)[0].split()[-1]
    moments = random.Random(5)
    for _ in range(kills):
        with builder(store) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(moments.uniform(0, 0.25))
            process.kill()
    assert builder(store).communicate(timeout=60)[0].split()[-1] == content
    artifact = store.find("encode", key)
    assert artifact is not None
    check_files(artifact.path, artifact.manifest, deep=True)
    assert left_over(store) == []


def lying(place: Path, **options: object) -> Lease:
    """A lease that everybody gets."""
    return acquire(place.with_name(uuid.uuid4().hex))


def test_where_everybody_gets_the_lease_still_one_artifact_is_published(
    store: Store, key: Fingerprint, describe: Describe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elf.cache.store.acquire", lying)
    barrier = threading.Barrier(3)
    found: list[Artifact] = []

    def build() -> None:
        own = Store(store.root)
        with own.building("encode", key) as building:
            barrier.wait()
            fill(building.path)
            barrier.wait()
            manifest = describe(building.path, "encode", key)
            barrier.wait()
            found.append(own.commit(building, manifest))

    for _ in range(10):
        threads = [threading.Thread(target=build) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(found) == 3
        assert len({artifact.manifest.content for artifact in found}) == 1
        check_files(found[0].path, found[0].manifest, deep=True)
        found.clear()
        shutil.rmtree(store.root)


def test_where_only_the_lock_lies_there_is_one_builder(
    store: Store, key: Fingerprint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "flock", lambda fd, how: None)
    with store.building("encode", key), pytest.raises(StoreBusy), Store(store.root).rebuilding("encode", key):
        pass


def test_who_lost_the_lease_publishes_nothing(store: Store, key: Fingerprint, describe: Describe) -> None:
    with store.building("encode", key) as building:
        fill(building.path)
        manifest = describe(building.path, "encode", key)
        mark = building.path.with_name(f"{key}.lease")
        mark.write_text(mark.read_text().replace('"host": "', '"host": "not-'))
        mark.write_text(json.dumps(json.loads(mark.read_text()) | {"token": "theirs"}))
        with pytest.raises(StoreBusy, match="publishes nothing"):
            store.commit(building, manifest)
    assert store.find("encode", key) is None
    assert (building.path / "sub" / "a.txt").exists()
    assert store.builder_of("encode", key) is not None


def test_what_was_begun_is_counted_until_it_is_finished(
    store: Store, key: Fingerprint, describe: Describe
) -> None:
    assert store.begun("encode", key) == 0
    with store.building("encode", key) as building:
        fill(building.path)
        size = sum(path.stat().st_size for path in building.path.rglob("*") if path.is_file())
        assert store.begun("encode", key) == size > 0
        store.commit(building, describe(building.path, "encode", key))
    assert store.begun("encode", key) == 0


@pytest.mark.parametrize("atomic", [True, False])
@pytest.mark.parametrize(("text", "identical"), [("payload", True), ("other", False)])
def test_a_rebuilt_artifact_takes_the_place_of_the_old_one(
    store: Store,
    key: Fingerprint,
    build: Callable[[], Artifact],
    describe: Describe,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    identical: bool,
    atomic: bool,
) -> None:
    if not atomic:
        monkeypatch.setattr(exchange, "_exchange_atomically", lambda new, old: False)
    build()
    with store.rebuilding("encode", key) as building:
        assert building.fresh
        fill(building.path, text)
        (building.path / "aux" / "log.txt").write_text("another day")
        replaced = store.replace(building, describe(building.path, "encode", key))
    assert replaced.identical is identical
    assert replaced.artifact == store.find("encode", key)
    assert (replaced.artifact.path / "sub" / "a.txt").read_text() == text
    check_files(replaced.artifact.path, replaced.artifact.manifest, deep=True)
    assert left_over(store) == []


def test_rebuilding_cures_a_damaged_artifact(
    store: Store, key: Fingerprint, build: Callable[[], Artifact], describe: Describe
) -> None:
    (build().path / "manifest.json").write_text("{")
    with store.rebuilding("encode", key) as building:
        fill(building.path)
        replaced = store.replace(building, describe(building.path, "encode", key))
    assert replaced.identical is None
    assert store.find("encode", key) == replaced.artifact


def test_rebuilding_what_never_was_is_building(store: Store, key: Fingerprint, describe: Describe) -> None:
    with store.rebuilding("encode", key) as building:
        fill(building.path)
        replaced = store.replace(building, describe(building.path, "encode", key))
    assert replaced == Replaced(store.find("encode", key) or pytest.fail("not there"), None)


def test_what_somebody_builds_is_not_rebuilt(store: Store, key: Fingerprint) -> None:
    with store.building("encode", key):
        assert store.builder_of("encode", key) is not None
        with pytest.raises(StoreBusy, match=f"process {os.getpid()}"), store.rebuilding("encode", key):
            pass
    assert store.builder_of("encode", key) is None


def test_a_forced_rebuild_never_starts_from_the_old_artifact(
    store: Store, key: Fingerprint, build: Callable[[], Artifact], describe: Describe
) -> None:
    build()
    with store.rebuilding("encode", key) as building:
        fill(building.path)
        store.replace(building, describe(building.path, "encode", key))
    with store.rebuilding("encode", key) as building:
        assert building.fresh


def test_a_full_disk_publishes_nothing_and_says_so(
    small_disk: Path, key: Fingerprint, describe: Describe
) -> None:
    store = Store(small_disk / "store")
    with store.building("encode", key) as building:
        (building.path / "a.bin").write_bytes(b"x" * 1000)
        manifest = describe(building.path, "encode", key)
        with pytest.raises(OSError, match="No space"):
            (small_disk / "filler").write_bytes(b"x" * 2_000_000)
        with pytest.raises(Unwritable, match=r"full \(.* bytes free"):
            store.commit(building, manifest)
    assert store.find("encode", key) is None
    (small_disk / "filler").unlink()
    with store.building("encode", key) as building:
        assert not building.fresh
        store.commit(building, manifest)
    assert store.find("encode", key) is not None


def test_a_read_only_store_is_read_but_not_built(
    small_disk: Path, key: Fingerprint, describe: Describe, named_key: Callable[[str], Fingerprint]
) -> None:
    store = Store(small_disk / "store")
    with store.building("encode", key) as building:
        fill(building.path)
        artifact = store.commit(building, describe(building.path, "encode", key))
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    assert store.find("encode", key) == artifact
    with pytest.raises(Unwritable, match="read-only"), store.building("encode", named_key("new")):
        pass
