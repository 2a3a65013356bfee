"""Numbers as people read them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elf.pipeline.wording import about_seconds, amount_text, bytes_text, count_of, seconds_text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (None, "–"),
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (246_000_000, "246 MB"),
        (9_249_000_000_000, "9.25 TB"),
    ],
)
def test_bytes(count: int | None, text: str) -> None:
    assert bytes_text(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "–"),
        (0.04, "0.0 s"),
        (9.96, "10 s"),
        (59.7, "1 m 00 s"),
        (123, "2 m 03 s"),
        (18600, "5 h 10 m"),
        (3e6, "35 days"),
        (4e8, "13 years"),
    ],
)
def test_seconds(seconds: float | None, text: str) -> None:
    assert seconds_text(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "–"), (0.1, "~1 s"), (99, "~99 s"), (110, "~2 min"), (7200, "~2 h"), (3e6, "~35 days")],
)
def test_estimates_are_as_coarse_as_they_are_uncertain(seconds: float | None, text: str) -> None:
    assert about_seconds(seconds) == text


@given(st.integers(0, 10**15))
def test_bytes_keep_their_size_to_a_percent(count: int) -> None:
    number, unit = bytes_text(count).split()
    back = float(number) * 1000 ** ("B", "kB", "MB", "GB", "TB", "PB").index(unit)
    assert back == pytest.approx(count, rel=0.006)


@given(st.floats(0, 1e10))
def test_seconds_never_take_more_than_a_table_cell(seconds: float) -> None:
    assert len(seconds_text(seconds)) <= 12


def test_plurals() -> None:
    assert (count_of(1, "step"), count_of(1200, "step")) == ("1 step", "1,200 steps")


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (None, "–"),
        (99_999, "99,999"),
        (100_000, "100 k"),
        (999_499, "999 k"),
        (999_500, "1.00 M"),
        (8_819_296, "8.82 M"),
        (9_030_959_104, "9.03 G"),
        (45_154_828_288, "45.2 G"),
        (10**18, "1000 P"),
    ],
)
def test_amounts(count: int | None, text: str) -> None:
    assert amount_text(count) == text
