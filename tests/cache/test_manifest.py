"""The manifest is read strictly: it says exactly what it should, or nothing is believed."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elf.cache.errors import CacheError, Damaged
from elf.cache.manifest import FileRecord, Fingerprint, Manifest, merkle_root, short


@pytest.fixture
def manifest(
    tmp_path: Path,
    describe: Callable[[Path, str, Fingerprint], Manifest],
    named_key: Callable[[str], Fingerprint],
) -> Manifest:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.bin").write_bytes(b"abc")
    (tmp_path / "aux").mkdir()
    (tmp_path / "aux" / "log.txt").write_text("log")
    return describe(tmp_path, "encode", named_key("x"))


def test_a_manifest_survives_its_text(manifest: Manifest) -> None:
    assert Manifest.from_json(manifest.to_json()) == manifest
    assert manifest.to_json() == Manifest.from_json(manifest.to_json().encode()).to_json()
    assert len(short(manifest.fingerprint)) == 12


def test_content_covers_the_payload_and_nothing_else(manifest: Manifest) -> None:
    assert set(manifest.files) == {"sub/a.bin"}
    assert set(manifest.aux) == {"aux/log.txt"}
    assert manifest.content == merkle_root(manifest.files)


FAULTS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "unknown field": (lambda m: m.update(extra=1), "unknown field 'extra'"),
    "missing field": (lambda m: m.pop("facts"), "lacks the field 'facts'"),
    "newer format": (lambda m: m.update(format=2), "format"),
    "text for a number": (lambda m: m.update(version="1"), "version"),
    "truth for a number": (lambda m: m.update(version=True), "version"),
    "short key": (lambda m: m.update(fingerprint="abc"), "fingerprint"),
    "bad input key": (lambda m: m["inputs"].update(tokens="../../etc"), r"inputs\.tokens"),
    "list for an object": (lambda m: m.update(identity=[]), "identity"),
    "wrong content": (lambda m: m.update(content="0" * 64), "content"),
    "payload under aux": (lambda m: m["files"].update({"aux/x": RECORD}), "aux/x"),
    "manifest as payload": (lambda m: m["files"].update({"manifest.json": RECORD}), "manifest.json"),
    "aux outside aux": (lambda m: m["aux"].update({"x": RECORD}), "'x'"),
    "negative size": (lambda m: m["files"]["sub/a.bin"].update(bytes=-1), "bytes"),
    "other digest": (lambda m: m["files"]["sub/a.bin"].update(digest="md5:0"), "digest"),
    "record too wide": (lambda m: m["files"]["sub/a.bin"].update(mode=1), "mode"),
    "provenance too wide": (lambda m: m["provenance"].update(token="s"), "provenance"),
    "argv not texts": (lambda m: m["provenance"].update(argv=[1]), "argv"),
}
RECORD = {"bytes": 1, "digest": "xxh3:" + "0" * 32}


@pytest.mark.parametrize("name", FAULTS)
def test_a_manifest_that_is_off_is_refused_by_field(manifest: Manifest, name: str) -> None:
    plain = json.loads(manifest.to_json())
    change, message = FAULTS[name]
    change(plain)
    with pytest.raises(Damaged, match=message):
        Manifest.from_json(json.dumps(plain))


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "../up", "a/../../up", "..", ".", "", "./a", "a//b", "a/", "a/./b", "a\0b"]
)
@pytest.mark.parametrize("group", ["files", "aux"])
def test_no_path_leads_out_of_the_artifact(manifest: Manifest, path: str, group: str) -> None:
    plain = json.loads(manifest.to_json())
    plain[group][path if group == "files" else f"aux/{path}" if path[:1] != "/" else path] = RECORD
    with pytest.raises(Damaged):
        Manifest.from_json(json.dumps(plain))


@given(st.binary(max_size=200))
def test_no_bytes_but_a_manifest_pass(raw: bytes) -> None:
    with pytest.raises(Damaged):
        Manifest.from_json(raw)


def test_a_manifest_that_says_another_thing_is_refused(manifest: Manifest) -> None:
    """What is well-formed and yet not what was written: another number among the facts, another host."""
    for change in (
        lambda m: m["facts"].update(rows=7),
        lambda m: m["provenance"].update(host="elsewhere"),
        lambda m: m["aux"]["aux/log.txt"].update(bytes=4),
        lambda m: m.update(digest="0" * 64),
    ):
        plain = json.loads(manifest.to_json())
        change(plain)
        with pytest.raises(Damaged, match="what it says was changed"):
            Manifest.from_json(json.dumps(plain))


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_what_is_no_number_is_refused(manifest: Manifest, number: str) -> None:
    plain = json.loads(manifest.to_json())
    del plain["digest"]
    plain["provenance"]["seconds"] = float(number.replace("Infinity", "inf"))
    with pytest.raises(Damaged, match=f"{number} is no number"):
        Manifest.from_json(json.dumps(plain))


def test_a_manifest_of_an_earlier_version_has_no_digest(manifest: Manifest) -> None:
    plain = json.loads(manifest.to_json())
    del plain["digest"]
    assert Manifest.from_json(json.dumps(plain)) == manifest


def test_every_cut_of_a_manifest_is_refused(manifest: Manifest) -> None:
    text = manifest.to_json().rstrip()
    for end in range(0, len(text), 7):
        with pytest.raises(Damaged):
            Manifest.from_json(text[:end])


def test_a_number_that_is_none_is_not_written(manifest: Manifest) -> None:
    broken = Manifest.from_json(manifest.to_json())
    object.__setattr__(broken, "facts", {"loss": float("nan")})
    with pytest.raises(CacheError, match="encode"):
        broken.to_json()


@given(st.dictionaries(st.text(min_size=1), st.integers(0, 2**40), min_size=1), st.data())
def test_the_root_depends_on_every_record_but_not_on_their_order(
    sizes: dict[str, int], data: st.DataObject
) -> None:
    files = {name: FileRecord(size, RECORD["digest"]) for name, size in sizes.items()}
    assert merkle_root(dict(reversed(files.items()))) == merkle_root(files)
    name = data.draw(st.sampled_from(sorted(files)))
    grown = {**files, name: FileRecord(files[name].bytes + 1, files[name].digest)}
    fewer = {other: record for other, record in files.items() if other != name}
    assert len({merkle_root(files), merkle_root(grown), merkle_root(fewer)}) == 3
