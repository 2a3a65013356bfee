import errno
import json
import os
from pathlib import Path

import pytest
from judging import make_context
from tiny_wheel import digest, make_wheel

from elf.cache.errors import Unwritable
from elf.pipeline.errors import Failed
from elf.stages import fetch
from elf.stages.assets import Located, locate
from elf.stages.config import Asset


def run(out: Path, located: Located) -> dict:  # type: ignore[type-arg]
    return dict(fetch.run(located, make_context(out, {})))


def files(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()
    }


def test_a_file_keeps_its_suffix_only(tmp_path: Path) -> None:
    path = tmp_path / "corpus.JSONL"
    path.write_text("{}\n")
    located = locate(Asset(uri=f"path:{path}"))
    facts = run(tmp_path / "out", located)
    assert files(tmp_path / "out") == {"data/asset.jsonl": "{}\n"}
    assert facts == {"bytes": 3, "files": 1, "licence": None, "digest": located.digest}


def test_a_folder_keeps_its_names_and_links_become_files(tmp_path: Path) -> None:
    (tmp_path / "in" / "deep").mkdir(parents=True)
    (tmp_path / "in" / "deep" / "a.txt").write_text("a")
    (tmp_path / "in" / "b.txt").symlink_to("deep/a.txt")
    (tmp_path / "in" / ".hidden").write_text("x")
    facts = run(tmp_path / "out", locate(Asset(uri=f"path:{tmp_path / 'in'}")))
    assert files(tmp_path / "out") == {"data/deep/a.txt": "a", "data/b.txt": "a"}
    assert not (tmp_path / "out" / "data" / "b.txt").is_symlink()
    assert facts["files"] == 2


def test_bytes_that_changed_since_the_plan_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one")
    located = locate(Asset(uri=f"path:{path}"))
    path.write_text("two")
    with pytest.raises(Failed, match="changed while it was copied"):
        run(tmp_path / "out", located)
    path.unlink()
    with pytest.raises(Failed, match="is gone since the plan"):
        run(tmp_path / "out", located)
    path.write_text("one")
    run(tmp_path / "out", located)
    assert files(tmp_path / "out") == {"data/asset.txt": "one"}, "what failed before leaves nothing behind"


def test_what_ships_with_python(tmp_path: Path) -> None:
    located = locate(Asset(uri="python:pydoc_data.topics"))
    facts = run(tmp_path / "out", located)
    lines = (tmp_path / "out" / "data" / "asset.jsonl").read_text().splitlines()
    assert all(json.loads(line).keys() == {"id", "text"} for line in lines)
    assert facts["licence"] == "PSF-2.0"
    with pytest.raises(Failed, match="the plan saw"):
        run(tmp_path / "out", located.model_copy(update={"digest": "sha256:" + "0" * 64}))


def test_a_wheel_from_the_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = make_wheel(tmp_path)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    uri = "pypi:tiny-text==1.0#tiny_text/data"
    facts = run(tmp_path / "out", locate(Asset(uri=uri, digest=digest(wheel))))
    assert files(tmp_path / "out") == {"data/a.txt": "one", "data/deep/b.txt": "two"}
    assert facts == {"bytes": 6, "files": 2, "licence": "CC0-1.0", "digest": digest(wheel)}


def test_a_full_disk_is_said_in_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one")

    def full(*arguments: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "copy_file_range", full)
    monkeypatch.setattr("shutil.copyfileobj", full)
    with pytest.raises(Unwritable, match="the disk is full"):
        run(tmp_path / "out", locate(Asset(uri=f"path:{path}")))


def test_copying_does_without_the_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "a"
    source.write_bytes(os.urandom(3_000_000))
    real = os.copy_file_range
    calls: list[int] = []

    def stops(source: int, target: int, count: int) -> int:
        calls.append(count)
        if len(calls) == 2:
            raise OSError(errno.EXDEV, "another file system")
        return real(source, target, 1_000_000)

    monkeypatch.setattr(os, "copy_file_range", stops)
    fetch.copy_file(source, tmp_path / "b")
    assert (tmp_path / "b").read_bytes() == source.read_bytes()
    assert len(calls) == 2
