"""What is pushed is pulled byte for byte, from S3 and from a folder; half an artifact is never seen anywhere."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from damage import reword
from s3_server import S3Server, serving_s3

from elf.cache import pulling, pushing
from elf.cache.errors import BadRemote, CacheError, Damaged, Unreachable, Unwritable
from elf.cache.manifest import Fingerprint, Manifest
from elf.cache.pulled import is_pulled
from elf.cache.pulling import pull
from elf.cache.pushing import Conflict, push
from elf.cache.records import check_files
from elf.cache.remote import Remote
from elf.cache.store import Artifact, Store

Describe = Callable[[Path, str, Fingerprint], Manifest]
Build = Callable[..., Artifact]


@contextmanager
def unseen(total: int, done: int) -> Iterator[Callable[[int], None]]:
    yield lambda count: None


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with serving_s3(tmp_path_factory.mktemp("s3")) as made:
        yield made


@pytest.fixture(params=["file", pytest.param("s3", marks=pytest.mark.slow)])
def remote(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Remote:
    if request.param == "file":
        (tmp_path / "remote").mkdir()
        return Remote(f"file://{tmp_path}/remote")
    server: S3Server = request.getfixturevalue("server")
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return Remote(server.make_bucket(uuid.uuid4().hex) + "/some/prefix")


@pytest.fixture
def folder_remote(tmp_path: Path) -> Remote:
    (tmp_path / "remote").mkdir()
    return Remote(f"file://{tmp_path}/remote")


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulling, "PIECE", 1000)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def other(tmp_path: Path) -> Store:
    """The store of another host."""
    return Store(tmp_path / "other")


@pytest.fixture
def key(named_key: Callable[[str], Fingerprint]) -> Fingerprint:
    return named_key("k")


@pytest.fixture
def build(key: Fingerprint, describe: Describe) -> Build:
    def build(store: Store, text: str = "payload", **changes: object) -> Artifact:
        with store.building("encode", key) as building:
            fill(building.path, text)
            manifest = describe(building.path, "encode", key)
            return store.commit(building, replace(manifest, **changes))  # type: ignore[arg-type]

    return build


def fill(path: Path, text: str = "payload") -> None:
    """A file of several parts, names that need care, an empty file, and one beside the payload."""
    for name, content in {
        "c/0/0/0": text * 500,
        "c/1/0/0": text * 5,
        "a name #1 100%.txt": text,
        "empty": "",
        "aux/log.txt": "log",
    }.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(content)


def fetch(store: Store, remote: Remote, key: Fingerprint) -> Artifact:
    pulled = pull(store, remote, "encode", key, meter=unseen)
    assert pulled is not None
    return pulled.artifact


def left_over(store: Store) -> list[str]:
    inside = [
        path.relative_to(store.root) for path in (store.root / ".building").rglob("*") if path.is_file()
    ]
    return [str(path) for path in inside if path.suffix != ".lock"]


@pytest.mark.usefixtures("small_parts")
def test_what_one_host_pushes_another_pulls(
    store: Store, other: Store, remote: Remote, build: Build, key: Fingerprint
) -> None:
    artifact = build(store)
    size = sum(
        record.bytes for record in (*artifact.manifest.files.values(), *artifact.manifest.aux.values())
    )
    assert pull(other, remote, "encode", key, meter=unseen) is None
    assert push(artifact, remote, meter=unseen) == (size, 0)
    remote.put("stranger/thing/file", b"")
    assert list(remote.keys()) == [("encode", key)]
    assert push(artifact, remote, meter=unseen) == (0, size), "it is there already"
    pulled = pull(other, remote, "encode", key, meter=unseen)
    assert pulled is not None
    assert (pulled.artifact.manifest, pulled.received) == (artifact.manifest, size)
    check_files(pulled.artifact.path, artifact.manifest, deep=True)
    assert (pulled.artifact.path / "manifest.json").read_bytes() == (
        artifact.path / "manifest.json"
    ).read_bytes()
    assert is_pulled(other.root, pulled.artifact)
    assert not is_pulled(store.root, artifact)
    assert left_over(other) == []
    again = pull(other, remote, "encode", key, meter=unseen)
    assert again is not None
    assert again.received == 0


def test_every_byte_is_counted_once(folder_remote: Remote, store: Store, other: Store, build: Build) -> None:
    counted: list[int] = []

    @contextmanager
    def meter(total: int, done: int) -> Iterator[Callable[[int], None]]:
        counted.extend([total, done])
        yield counted.append

    artifact = build(store)
    push(artifact, folder_remote, meter=meter)
    total, done, *moved = counted
    assert (done, sum(moved)) == (0, total)
    counted.clear()
    pull(other, folder_remote, "encode", artifact.manifest.fingerprint, meter=meter)
    assert (counted[0], counted[1], sum(counted[2:])) == (total, 0, total)


DIES = """
import os, signal, sys, threading
from elf.cache.transfers import Tally
from contextlib import contextmanager
from pathlib import Path
from elf.cache.manifest import Fingerprint
from elf.cache.pulling import pull
from elf.cache.pushing import push
from elf.cache.remote import Remote
from elf.cache.store import Store
way, call, last, root, url, key = sys.argv[1:]
owner = Tally if call == "add" else Remote
calls, real, one = [], getattr(owner, call), threading.Lock()
def dying(self, *arguments):
    with one:
        calls.append(None)
        if len(calls) > int(last):
            os.kill(os.getpid(), signal.SIGKILL)
        return real(self, *arguments)
setattr(owner, call, dying)
@contextmanager
def meter(total, done):
    print(done, flush=True)
    yield lambda count: None
store, remote = Store(Path(root)), Remote(url)
if way == "push":
    push(store.find("encode", Fingerprint(key)), remote, meter=meter)
else:
    pull(store, remote, "encode", Fingerprint(key), meter=meter)
"""


def die(way: str, call: str, last: int, store: Store, remote: Remote, key: Fingerprint) -> int:
    """A push or pull in a process that is killed at a call of the remote; the bytes it found done already."""
    arguments = [way, call, str(last), str(store.root), remote.url, key]
    done = subprocess.run(
        [sys.executable, "-c", DIES, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    return int(done.stdout)


def test_a_killed_push_shows_nothing_and_is_gone_on_from(
    remote: Remote, store: Store, other: Store, build: Build, key: Fingerprint
) -> None:
    artifact = build(store)
    assert die("push", "put", 2, store, remote, key) == 0
    assert remote.find("encode", key) is None
    assert pull(other, remote, "encode", key, meter=unseen) is None
    assert die("push", "create", 0, store, remote, key) > 0
    assert remote.find("encode", key) is None
    sent, there = push(artifact, remote, meter=unseen)
    assert sent == 0
    assert there > 0
    check_files(fetch(other, remote, key).path, artifact.manifest, deep=True)


def test_a_killed_pull_shows_nothing_and_is_gone_on_from(
    remote: Remote, store: Store, other: Store, build: Build, key: Fingerprint
) -> None:
    artifact = build(store)
    push(artifact, remote, meter=unseen)
    assert die("pull", "read", 3, other, remote, key) == 0
    assert other.find("encode", key) is None
    pulled = pull(other, remote, "encode", key, meter=unseen)
    assert pulled is not None
    total = sum(
        record.bytes for record in (*artifact.manifest.files.values(), *artifact.manifest.aux.values())
    )
    assert 0 < pulled.received < total, "what came whole is not fetched again"
    check_files(pulled.artifact.path, artifact.manifest, deep=True)
    assert left_over(other) == []


@pytest.mark.parametrize("name", ["c/0/0/0", "aux/log.txt", "empty"])
@pytest.mark.usefixtures("small_parts")
def test_a_flipped_byte_at_the_remote_is_refused_and_named(
    folder_remote: Remote,
    store: Store,
    other: Store,
    build: Build,
    key: Fingerprint,
    name: str,
    tmp_path: Path,
) -> None:
    artifact = build(store)
    push(artifact, folder_remote, meter=unseen)
    (path,) = (tmp_path / "remote").glob(f"encode/{key}/*/{name}")
    content = bytearray(path.read_bytes() or b"x")
    content[-1] ^= 1
    path.write_bytes(content)
    if name == "empty":
        check_files(fetch(other, folder_remote, key).path, artifact.manifest, deep=True)
        return  # what follows a file's recorded end is never read
    with pytest.raises(
        Damaged, match=f"encode/{key}/.*/{name} has digest .*Delete .*/encode/{key} and push it again"
    ):
        pull(other, folder_remote, "encode", key, meter=unseen)
    assert other.find("encode", key) is None
    content[-1] ^= 1
    path.write_bytes(content)
    check_files(fetch(other, folder_remote, key).path, artifact.manifest, deep=True)


HARM: dict[str, tuple[Callable[[Path, Path], object], str]] = {
    "cut": (
        lambda manifest, file: file.write_bytes(file.read_bytes()[:-1]),
        "ends at byte|cannot be reached",
    ),
    "gone": (lambda manifest, file: file.unlink(), r"c/0/0/0 is missing"),
    "no JSON": (lambda manifest, file: manifest.write_text("{"), r"manifest\.json is damaged: not JSON"),
    "another fact": (
        lambda manifest, file: manifest.write_text(manifest.read_text().replace("1.5", "1.6")),
        "what it says was changed",
    ),
    "another fact, sealed": (lambda manifest, file: reword(manifest, "1.5", "1.6"), "is missing"),
    "another key": (
        lambda manifest, file: reword(manifest, manifest.parent.name, "0" * 64),
        "belongs to encode 000000000000",
    ),
    "another root": (
        lambda manifest, file: manifest.write_text(
            manifest.read_text().replace(json.loads(manifest.read_text())["content"], "0" * 64)
        ),
        "its files give",
    ),
}


@pytest.mark.parametrize("harm", HARM)
def test_what_was_harmed_at_the_remote_is_refused(
    folder_remote: Remote,
    store: Store,
    other: Store,
    build: Build,
    key: Fingerprint,
    harm: str,
    tmp_path: Path,
) -> None:
    push(build(store), folder_remote, meter=unseen)
    do, words = HARM[harm]
    (file,) = (tmp_path / "remote").glob(f"encode/{key}/*/c/0/0/0")
    do(tmp_path / "remote" / "encode" / key / "manifest.json", file)
    with pytest.raises(Damaged, match=words):
        pull(other, folder_remote, "encode", key, meter=unseen)
    assert other.find("encode", key) is None


def test_what_is_gone_at_the_remote_is_sent_again_by_who_has_that_very_artifact(
    folder_remote: Remote, store: Store, other: Store, build: Build, key: Fingerprint, tmp_path: Path
) -> None:
    artifact = build(store)
    push(artifact, folder_remote, meter=unseen)
    (file,) = (tmp_path / "remote").glob(f"encode/{key}/*/c/0/0/0")
    file.unlink()
    made = build(other)
    apart = replace(made.manifest, provenance=replace(made.manifest.provenance, host="another"))
    with pytest.raises(Damaged, match=f"{key}.* is missing or cut short .*Delete .* and push it again"):
        push(Artifact(made.path, apart), folder_remote, meter=unseen)
    assert push(artifact, folder_remote, meter=unseen).sent == artifact.manifest.files["c/0/0/0"].bytes
    assert push(artifact, folder_remote, meter=unseen).sent == 0
    shutil.rmtree(other.path("encode", key))
    assert pull(other, folder_remote, "encode", key, meter=unseen) is not None


def test_a_file_damaged_here_is_not_pushed(
    folder_remote: Remote, store: Store, build: Build, key: Fingerprint
) -> None:
    artifact = build(store)
    path = artifact.path / "c/0/0/0"
    path.write_text(path.read_text().replace("payload", "Payload", 1))
    with pytest.raises(Damaged, match=f"{path} has .* bytes of digest"):
        push(artifact, folder_remote, meter=unseen)
    path.unlink()
    with pytest.raises(Damaged, match=f"{path} is missing"):
        push(artifact, folder_remote, meter=unseen)
    assert folder_remote.find("encode", key) is None


def test_one_key_has_one_content(
    remote: Remote, store: Store, other: Store, build: Build, key: Fingerprint
) -> None:
    first, second = build(store), build(other, "another")
    push(first, remote, meter=unseen)
    with pytest.raises(Conflict, match=f"holds another encode {key[:12]}.*One key must mean the same bytes"):
        push(second, remote, meter=unseen)
    held = remote.find("encode", key)
    assert held is not None
    assert held.manifest == first.manifest


@pytest.mark.parametrize(
    "texts", [("payload", "payload"), ("payload", "another")], ids=["same bytes", "other bytes"]
)
def test_two_pushers_at_once_never_mix(
    remote: Remote,
    build: Build,
    key: Fingerprint,
    texts: tuple[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stores = [Store(tmp_path / "0"), Store(tmp_path / "1")]
    artifacts = [
        build(store, text, facts={"host": i})
        for i, (store, text) in enumerate(zip(stores, texts, strict=True))
    ]
    barrier, create = threading.Barrier(2), Remote.create

    def together(self: Remote, path: str, content: bytes) -> bool:
        barrier.wait(60)
        return create(self, path, content)

    monkeypatch.setattr(Remote, "create", together)
    said: list[str] = []

    def send(artifact: Artifact) -> None:
        try:
            push(artifact, Remote(remote.url), meter=unseen)
            said.append("pushed")
        except Conflict:
            said.append("conflict")

    threads = [threading.Thread(target=send, args=(artifact,)) for artifact in artifacts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert sorted(said) == (["pushed", "pushed"] if len(set(texts)) == 1 else ["conflict", "pushed"])
    pulled = fetch(Store(tmp_path / "third"), remote, key)
    assert pulled.manifest in [artifact.manifest for artifact in artifacts]
    check_files(pulled.path, pulled.manifest, deep=True)


@pytest.mark.slow
def test_a_file_in_parts_is_all_or_nothing(
    server: S3Server,
    store: Store,
    other: Store,
    key: Fingerprint,
    describe: Describe,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    remote = Remote(server.make_bucket("parts"))
    with store.building("encode", key) as building:
        (building.path / "shard").write_bytes(os.urandom(21 << 20))
        artifact = store.commit(building, describe(building.path, "encode", key))
    path = artifact.path / "shard"
    good = path.read_bytes()
    path.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    with pytest.raises(Damaged, match="shard has"):
        push(artifact, remote, meter=unseen)
    assert list(remote.keys()) == []
    path.write_bytes(good)
    assert die("push", "add", 2, store, remote, key) == 0, "killed between the second part and the third"
    assert list(remote.keys()) == []
    assert die("push", "create", 0, store, remote, key) == 0
    assert die("push", "create", 0, store, remote, key) == 21 << 20, "what came whole is not sent again"
    assert remote.find("encode", key) is None
    push(artifact, remote, meter=unseen)
    assert die("pull", "add", 2, other, remote, key) == 0
    assert other.find("encode", key) is None
    check_files(fetch(other, remote, key).path, artifact.manifest, deep=True)


def test_files_of_a_half_finished_build_are_not_taken_for_pulled_ones(
    folder_remote: Remote, store: Store, other: Store, build: Build, key: Fingerprint
) -> None:
    artifact = build(store)
    push(artifact, folder_remote, meter=unseen)
    with other.building("encode", key) as building:
        (building.path / "c").mkdir()
        (building.path / "c" / "stray").write_text("half")
    check_files(fetch(other, folder_remote, key).path, artifact.manifest, deep=True)
    assert (building.path / "c" / "stray").exists()


def test_what_does_not_fit_is_not_begun(
    folder_remote: Remote,
    store: Store,
    other: Store,
    build: Build,
    key: Fingerprint,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    push(build(store), folder_remote, meter=unseen)
    monkeypatch.setattr(pulling, "free_bytes", lambda path: 10)
    with pytest.raises(Unwritable, match=r"needs .* more bytes .* and 10 are free"):
        pull(other, folder_remote, "encode", key, meter=unseen)
    assert left_over(other) == []


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("s4://bucket/x", "no address of a remote"),
        ("bucket/x", "no address of a remote"),
        ("s3:///x", "no address of a remote"),
        ("s3://AKIA:secretsecret@bucket/x", r"s3://\*\*\*@bucket/x holds a user"),
        ("s3://bucket/x?sig=secretsecret", "holds a user, a question mark"),
        ("file://host/x", "no address of a remote"),
        ("file:///not/there", "folder that does not exist here"),
    ],
)
def test_an_address_is_checked_before_anything_is_asked(url: str, words: str) -> None:
    with pytest.raises(BadRemote, match=words) as caught:
        Remote(url)
    assert "secretsecret" not in str(caught.value)


@pytest.mark.slow
def test_a_bucket_that_does_not_exist_is_a_wrong_address(
    server: S3Server, key: Fingerprint, build: Build, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    remote = Remote("s3://nowhere/x")
    with pytest.raises(BadRemote, match="s3://nowhere/x: its bucket does not exist"):
        remote.find("encode", key)
    with pytest.raises(BadRemote, match="bucket does not exist"):
        list(remote.keys())


def test_credentials_that_are_missing_are_asked_for(
    key: Fingerprint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "loopback-secret-of-the-tests")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    with pytest.raises(BadRemote, match="AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY") as caught:
        Remote("s3://bucket/x").find("encode", key)
    assert "loopback-secret" not in str(caught.value)


def test_a_remote_that_is_down_is_out_of_reach(key: Fingerprint, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in S3Server("http://127.0.0.1:9").environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(Unreachable, match=r"s3://bucket/x cannot be reached: .* http://127\.0\.0\.1:9"):
        Remote("s3://bucket/x").find("encode", key)


def test_looking_at_the_cache_loads_no_library_of_remotes() -> None:
    probe = "import sys, elf.cache.pushing, elf.cache.pulling, elf.flows.cli; print('obstore' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_remote_file_that_goes_missing_after_sending_is_noticed(
    folder_remote: Remote, store: Store, build: Build, key: Fingerprint, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact = build(store)
    put = Remote.put
    monkeypatch.setattr(
        Remote, "put", lambda self, path, content: "empty" in path or put(self, path, content)
    )
    with pytest.raises(CacheError, match="empty was sent and is not there"):
        pushing.push(artifact, folder_remote, meter=unseen)
    assert folder_remote.find("encode", key) is None


GROWTH = """
import resource, sys
from contextlib import contextmanager
from pathlib import Path
from elf.cache.manifest import Fingerprint
from elf.cache.pulling import pull
from elf.cache.pushing import push
from elf.cache.remote import Remote
from elf.cache.store import Store
@contextmanager
def meter(total, done):
    yield lambda count: None
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
root, url, key = sys.argv[1:]
remote, key = Remote(url), Fingerprint(key)
assert remote.find("encode", key) is None
before = peak()
push(Store(Path(root)).find("encode", key), remote, meter=meter)
pull(Store(Path(root + "-copy")), remote, "encode", key, meter=meter)
print(peak() - before)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_artifact(
    folder_remote: Remote, store: Store, key: Fingerprint, describe: Describe
) -> None:
    with store.building("encode", key) as building:
        for shard in range(4):
            (building.path / f"{shard}").touch()
            os.truncate(building.path / f"{shard}", 100 << 20)
        store.commit(building, describe(building.path, "encode", key))
    arguments = [str(store.root), folder_remote.url, key]
    done = subprocess.run(
        [sys.executable, "-c", GROWTH, *arguments], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 200, "megabytes; the artifact has 400"
