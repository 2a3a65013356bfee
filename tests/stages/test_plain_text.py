"""Plain text is divided without losing a word or a line's number."""

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elf.stages.plain_text import divide

LINES = st.lists(st.text(alphabet="ab \t\r", max_size=4), max_size=12)


@pytest.mark.parametrize("unit", ["paragraph", "line"])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines=LINES)
def test_every_word_is_in_one_document_at_its_line(tmp_path: Path, unit: str, lines: list[str]) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("\n".join(lines).encode())
    found = list(divide(path, unit))  # pyright: ignore[reportArgumentType]
    told = {
        place + offset: line.strip("\r")
        for place, raw in found
        for offset, line in enumerate(raw.decode().split("\n"))
    }
    assert told == {number: line.strip("\r") for number, line in enumerate(lines, 1) if line.strip()}
    numbers = sorted(told)
    parts = 1 + sum(second > first + 1 for first, second in pairwise(numbers))
    assert len(found) == (len(told) if unit == "line" else parts if told else 0)
