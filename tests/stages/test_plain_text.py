"""Plain text is divided without losing a word or a line's number."""

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elf.stages.plain_text import divide

ENDS = ("\n", "\r\n", "\r")
LINES = st.lists(st.text(alphabet="ab \t\x0b\x0c\x1c\x85\u2028\u2029", max_size=4), max_size=12)


@pytest.mark.parametrize("end", ENDS, ids=["Unix", "Windows", "old Mac"])
@pytest.mark.parametrize("unit", ["paragraph", "line"])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines=LINES)
def test_every_word_is_in_one_document_at_its_line(
    tmp_path: Path, unit: str, end: str, lines: list[str]
) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(end.join(lines).encode())
    found = list(divide(path, unit))  # pyright: ignore[reportArgumentType]
    told = {
        place + offset: line for place, raw in found for offset, line in enumerate(raw.decode().split(end))
    }
    assert told == {number: line for number, line in enumerate(lines, 1) if line.encode().strip()}
    numbers = sorted(told)
    parts = 1 + sum(second > first + 1 for first, second in pairwise(numbers))
    assert len(found) == (len(told) if unit == "line" else parts if told else 0)


def test_line_ends_may_be_mixed(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfa\rb\r\nc\n\rd\r\r\n\r")
    assert list(divide(tmp_path / "a.txt", "line")) == [(1, b"a"), (2, b"b"), (3, b"c"), (5, b"d")]
    assert list(divide(tmp_path / "a.txt", "paragraph")) == [(1, b"a\rb\r\nc"), (5, b"d")]
