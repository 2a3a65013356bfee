"""Whole or absent, and one clear paragraph when the disk refuses."""

import contextlib
import errno
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import xxhash

from elf import cache
from elf.cache.errors import Damaged, Unwritable
from elf.cache.files import (
    digest_file,
    filling,
    fsync_tree,
    make_folder,
    remove_at_once,
    remove_strays,
    write_atomic,
)
from elf.cache.manifest import Fingerprint, Manifest
from elf.cache.recording import records
from elf.cache.records import check_files


@contextmanager
def largest_file(limit: int) -> Iterator[None]:
    """No file may grow beyond `limit` bytes in this process: how a full disk looks without filling one."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_write_replaces_the_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_atomic(path, "first, longer than the second")
    write_atomic(path, "zweite: ü")
    assert path.read_text(encoding="utf-8") == "zweite: ü"
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    write_atomic(path, b"old")
    with largest_file(1000), pytest.raises(Unwritable, match=r"a\.bin.*bytes free"):
        write_atomic(path, b"x" * 5000)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_place_nobody_may_write_to_is_named() -> None:
    with pytest.raises(Unwritable, match="/sys/kernel/copy: "):
        write_atomic(Path("/sys/kernel/copy"), b"x")


@pytest.mark.parametrize("below", ["", "deeper/down"])
def test_a_file_where_a_folder_should_be_is_named(tmp_path: Path, below: str) -> None:
    (tmp_path / "a").write_text("file")
    with pytest.raises(Unwritable, match=r"/a.* cannot be made"):
        make_folder(tmp_path / "a" / below)


def test_a_stage_that_fills_the_disk_is_told_where(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "stage/target"
    source.write_bytes(bytes(5000))
    target.parent.mkdir()
    with (
        largest_file(1000),
        pytest.raises(Unwritable, match=rf"Cannot write {tmp_path}/stage.*same command again"),
        filling(target.parent),
    ):
        shutil.copyfile(source, target)


def test_what_a_stage_may_not_read_is_no_fault_of_the_store(tmp_path: Path) -> None:
    with pytest.raises(PermissionError), filling(tmp_path):
        raise PermissionError(errno.EACCES, "Permission denied", "/an/input")


def test_digests_are_those_of_the_whole_content(tmp_path: Path) -> None:
    raw = os.urandom(9_000_001)
    (tmp_path / "a").write_bytes(raw)
    assert digest_file(tmp_path / "a") == f"xxh3:{xxhash.xxh3_128_hexdigest(raw)}"
    fsync_tree(tmp_path)


def test_strays_go_and_finished_files_stay(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    for name in ("a.tmp", ".tmp-1-2", "sub/.tmp-3", "sub/b.bin", "tmp.txt"):
        (tmp_path / name).write_bytes(b"")
    for name in (".tmp-going", "sub/.tmp-going"):
        (tmp_path / name / "deeper").mkdir(parents=True)
        (tmp_path / name / "deeper" / "c.bin").write_bytes(b"")
    assert len(remove_strays(tmp_path)) == 5
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["b.bin", "sub", "tmp.txt"]


@pytest.mark.parametrize("moment", range(4))
def test_a_folder_goes_whole_whenever_its_remover_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: int
) -> None:
    names = {f"{number}.bin" for number in range(3)}
    for name in names:
        make_folder(tmp_path / "out" / "parts").joinpath(name).write_bytes(b"")
    calls, real = iter(range(9)), os.unlink

    def dying(*given: Any, **more: Any) -> None:
        if next(calls) == moment:
            raise KeyboardInterrupt
        real(*given, **more)

    with monkeypatch.context() as patched, contextlib.suppress(KeyboardInterrupt):
        patched.setattr(os, "unlink", dying)
        remove_at_once(tmp_path / "out" / "parts")
    assert not (tmp_path / "out" / "parts").exists()
    remove_strays(tmp_path / "out")
    assert not any((tmp_path / "out").iterdir())


def test_links_and_pipes_are_not_recorded(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc/passwd")
    with pytest.raises(Damaged, match="link"):
        records(tmp_path)
    (tmp_path / "link").unlink()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(Damaged, match="pipe"):
        records(tmp_path)


@pytest.mark.parametrize(
    ("harm", "deep", "message"),
    [
        (lambda p: (p / "a").unlink(), False, "missing"),
        (lambda p: (p / "a").write_bytes(b"12"), False, "2 bytes"),
        (lambda p: (p / "b").write_bytes(b""), False, "not named"),
        (lambda p: (p / "a").write_bytes(b"124"), True, "digest"),
        (lambda p: (p / "aux" / "log").write_bytes(b"log?"), True, "log"),
    ],
)
def test_a_folder_that_differs_from_its_manifest_is_named(
    tmp_path: Path,
    describe: Callable[[Path, str, Fingerprint], Manifest],
    named_key: Callable[[str], Fingerprint],
    harm: Callable[[Path], object],
    deep: bool,
    message: str,
) -> None:
    (tmp_path / "a").write_bytes(b"123")
    (tmp_path / "aux").mkdir()
    (tmp_path / "aux" / "log").write_bytes(b"log!")
    manifest = describe(tmp_path, "encode", named_key("x"))
    check_files(tmp_path, manifest, deep=True)
    harm(tmp_path)
    with pytest.raises(Damaged, match=message):
        check_files(tmp_path, manifest, deep=deep)


def test_nothing_heavy_is_imported() -> None:
    names = sorted(path.stem for path in Path(cache.__path__[0]).glob("[a-z]*.py"))
    script = f"import sys, {', '.join(f'elf.cache.{name}' for name in names)}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "elf.cache.store" in loaded
    assert not loaded & {"torch", "zarr", "prefect", "pydantic", "elf.pipeline", "elf.stages"}
