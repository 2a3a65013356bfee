"""JSON of an artifact is read whole or refused by name."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elf.cache.errors import Damaged
from elf.stages.json_files import read_json, read_json_lines, stream_json_lines


def test_what_was_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"a": 1}\n\n{"a": "é\u2028"}\n', encoding="utf-8")
    assert read_json_lines(path) == [{"a": 1}, {"a": "é\u2028"}]
    path.write_text("[1]", encoding="utf-8")
    assert read_json(path) == [1]


def stream(path: Path) -> list[Any]:
    return list(stream_json_lines(path))


@pytest.mark.parametrize("read", [read_json, read_json_lines, stream])
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot be read: "),
        (b"\xff", "(cannot be read|is damaged): "),
        (b'{"a": ', "is damaged: "),
    ],
)
def test_what_cannot_be_read_is_named(
    read: Callable[[Path], Any], content: bytes | None, words: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(Damaged, match=rf"a\.json.* {words}.*--force"):
        read(path)


@pytest.mark.parametrize("read", [read_json_lines, stream])
def test_the_line_is_named(read: Callable[[Path], Any], tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("{}\n{\n")
    with pytest.raises(Damaged, match=r"a\.jsonl, line 2, is damaged"):
        read(path)
