"""Pins say what a person wants kept, on every host, whatever else befalls their files."""

from pathlib import Path

import pytest
from stored import key_of

from elf.cache.errors import CacheError
from elf.cache.pins import is_pinned, pin, read_pins, unpin
from elf.cache.uses import Place

ROWS: Place = "encode", key_of("rows")


def test_a_pin_is_found_until_it_is_taken_away(tmp_path: Path) -> None:
    made = pin(tmp_path, ROWS, "for the ablation")
    assert read_pins(tmp_path) == {ROWS: made}
    assert is_pinned(tmp_path, ROWS)
    assert made.note == "for the ablation"
    assert pin(tmp_path, ROWS, "for the paper").note == read_pins(tmp_path)[ROWS].note == "for the paper"
    assert unpin(tmp_path, ROWS)
    assert not unpin(tmp_path, ROWS)
    assert read_pins(tmp_path) == {}


@pytest.mark.parametrize("text", ["", "{", '{"note": 1}'])
def test_a_pin_that_cannot_be_read_still_pins(tmp_path: Path, text: str) -> None:
    pin(tmp_path, ROWS)
    (tmp_path / ".pins" / "encode" / f"{ROWS[1]}.json").write_text(text)
    assert list(read_pins(tmp_path)) == [ROWS]
    assert is_pinned(tmp_path, ROWS)


def test_what_could_not_lie_in_a_store_is_not_pinned(tmp_path: Path) -> None:
    for place in (("../x", ROWS[1]), ("encode", key_of("a")[:12])):
        with pytest.raises(CacheError):
            pin(tmp_path, place)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []
