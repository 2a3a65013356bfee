"""Wheels as carriers of data: pinned, never run, and nothing in them lands anywhere but where it was asked for."""

import io
import stat
import struct
import tarfile
import zipfile
from pathlib import Path

import pytest
from tiny_wheel import digest, make_wheel

from elf.pipeline.errors import Failed
from elf.stages.wheels import download_wheel, read_licence, unzip_members

INDEX = "https://somebody:hunter2@127.0.0.1:9/simple"


@pytest.fixture
def links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes for the package index."""
    folder = tmp_path / "links"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    return folder


def test_a_wheel_comes_whole_and_is_unpacked_only_where_asked(links: Path, tmp_path: Path) -> None:
    original = make_wheel(links)
    wheel = download_wheel("tiny-text", "1.0", digest(original), tmp_path / "work")
    assert wheel.read_bytes() == original.read_bytes()
    unzip_members(wheel, "tiny_text/data", tmp_path / "data")
    found = {path.relative_to(tmp_path / "data").as_posix() for path in (tmp_path / "data").rglob("*.*")}
    assert found == {"a.txt", "deep/b.txt"}
    unzip_members(wheel, "tiny_text/datafile.txt", tmp_path / "single")
    assert [path.name for path in (tmp_path / "single").iterdir()] == ["datafile.txt"]
    assert read_licence(wheel) == "CC0-1.0"


def test_another_digest_stops_before_anything_is_kept(links: Path, tmp_path: Path) -> None:
    original = make_wheel(links)
    pinned = "sha256:" + "0" * 64
    with pytest.raises(Failed) as error:
        download_wheel("tiny-text", "1.0", pinned, tmp_path / "work")
    assert digest(original) in str(error.value)
    assert pinned in str(error.value)
    assert not list((tmp_path / "work").glob("*.whl"))


def test_a_version_that_is_not_there_is_named(links: Path, tmp_path: Path) -> None:
    make_wheel(links)
    with pytest.raises(Failed, match=r"tiny-text==2\.0.*PIP_INDEX_URL"):
        download_wheel("tiny-text", "2.0", "sha256:" + "0" * 64, tmp_path / "work")


def test_without_network_it_says_so_and_tells_no_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", INDEX)
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    with pytest.raises(Failed) as error:
        download_wheel("tiny-text", "1.0", "sha256:" + "0" * 64, tmp_path / "work")
    assert "could not be reached" in str(error.value)
    assert "hunter2" not in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("wishes", [{}, {"PIP_NO_BINARY": ":all:"}], ids=["plain", "sources wanted"])
def test_a_source_distribution_is_refused_unbuilt(
    links: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wishes: dict[str, str]
) -> None:
    mark = tmp_path / "it-ran"
    script = f"import pathlib\npathlib.Path({str(mark)!r}).touch()\n".encode()
    with tarfile.open(links / "tiny_text-1.0.tar.gz", "w:gz") as archive:
        for name, content in (("setup.py", script), ("PKG-INFO", b"Name: tiny-text\nVersion: 1.0\n")):
            member = tarfile.TarInfo(f"tiny_text-1.0/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    for name, value in wishes.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(Failed, match=r"could not download tiny-text==1\.0 as a wheel"):
        download_wheel("tiny-text", "1.0", digest(links / "tiny_text-1.0.tar.gz"), tmp_path / "work")
    assert not mark.exists(), "nothing of it was run"


def test_what_swells_beyond_all_text_is_refused_before_it_is_written(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, {"tiny_text/data/bomb.txt": "0" * 3_000_000})
    assert wheel.stat().st_size < 10_000
    with pytest.raises(Failed, match="made to fill a disk"):
        unzip_members(wheel, "tiny_text/data", tmp_path / "data")
    assert not (tmp_path / "data").exists()
    unzip_members(wheel, "tiny_text/datafile.txt", tmp_path / "data")
    assert (tmp_path / "data" / "datafile.txt").read_text() == "three", "only what is asked for counts"


def test_a_licence_is_read_from_a_bounded_piece(tmp_path: Path) -> None:
    text = "Metadata-Version: 2.1\nName: tiny-text\nLicense: MIT\n\n" + "0" * 50_000_000
    assert read_licence(make_wheel(tmp_path, {"tiny_text-1.0.dist-info/METADATA": text})) == "MIT"


@pytest.mark.parametrize(
    "name", ["../evil.txt", "/evil.txt", "a/../../evil.txt", "a\\..\\evil.txt", "C:/evil.txt"]
)
def test_members_that_would_land_outside_are_refused(tmp_path: Path, name: str) -> None:
    wheel = make_wheel(tmp_path, {name: "evil"})
    with pytest.raises(Failed, match="would land outside"):
        unzip_members(wheel, "", tmp_path / "data")
    assert not (tmp_path / "data").exists()
    assert not list(tmp_path.rglob("evil*"))


def test_links_are_refused(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path)
    with zipfile.ZipFile(wheel, "a") as archive:
        link = zipfile.ZipInfo("tiny_text/data/link")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, "/etc/passwd")
    with pytest.raises(Failed, match="link"):
        unzip_members(wheel, "tiny_text/data", tmp_path / "data")


def test_a_file_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path)
    with zipfile.ZipFile(wheel, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("tiny_text/data/a.txt", "other")
    with pytest.raises(Failed, match="twice"):
        unzip_members(wheel, "tiny_text/data", tmp_path / "data")


def test_a_member_larger_than_it_says_is_refused(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, {"tiny_text/data/bomb.txt": "0" * 1_000_000})
    raw = bytearray(wheel.read_bytes())
    entry = raw.rindex(b"PK\x01\x02", 0, raw.rindex(b"tiny_text/data/bomb.txt"))
    raw[entry + 24 : entry + 28] = struct.pack("<I", 10)  # the declared size in the central directory
    wheel.write_bytes(raw)
    with pytest.raises(Failed, match="damaged"):
        unzip_members(wheel, "tiny_text/data", tmp_path / "data")
    assert all(path.stat().st_size <= 10 for path in (tmp_path / "data").rglob("bomb.txt"))


def test_a_wheel_too_large_for_the_disk_is_refused_before_it_is_written(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path)
    raw = bytearray(wheel.read_bytes())
    entry = raw.rindex(b"PK\x01\x02", 0, raw.rindex(b"tiny_text/data/a.txt"))
    raw[entry + 24 : entry + 28] = struct.pack("<I", 2**32 - 2)
    wheel.write_bytes(raw)
    import elf.stages.wheels as module

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "free_bytes", lambda path: 2**31)
        with pytest.raises(Failed, match="free"):
            unzip_members(wheel, "tiny_text/data", tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_a_cut_wheel_and_a_wrong_prefix_are_named(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path)
    with pytest.raises(Failed, match="nothing under 'tiny_text/dat'"):
        unzip_members(wheel, "tiny_text/dat", tmp_path / "data")
    wheel.write_bytes(wheel.read_bytes()[:200])
    with pytest.raises(Failed, match="damaged"):
        unzip_members(wheel, "", tmp_path / "data")
