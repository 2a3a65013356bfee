"""Batches and records of a sampling run: every text once, whoever made it and wherever a run goes on."""

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elf.pipeline.errors import Failed
from elf.stages.sampled import Batch, Made, Part, cut, read_parts, write_part

SEEDS = (7, -3, 0)


def part(seed: int, *places: int) -> Part:
    """Of each text an id of its own."""
    return Part(seed, places, tuple((seed, place) for place in places))


def whole(batch: Batch) -> Part:
    return part(batch.seed, *batch.places)


@given(st.integers(1, 40), st.integers(1, 50))
def test_batches_hold_every_text_once_in_order(count: int, size: int) -> None:
    batches = cut(SEEDS, count, size)
    assert [(each.seed, place) for each in batches for place in each.places] == [
        (seed, place) for seed in SEEDS for place in range(count)
    ]
    assert all(len(each.places) <= size for each in batches)
    assert len(batches) == len(SEEDS) * -(-count // size)


@given(st.integers(1, 30), st.integers(1, 9), st.integers(1, 9), st.randoms(use_true_random=False))
def test_what_is_left_is_what_is_not_there(count: int, before: int, now: int, chance: random.Random) -> None:
    made, batches = Made(Path("parts")), cut(SEEDS, count, now)
    for each in cut(SEEDS, count, before):
        if chance.random() < 0.5:
            made.add(whole(each))
    for each in made.left(batches):
        made.add(whole(each))
    assert made.left(batches) == []
    assert made.all_of(batches) == [(seed, place, (seed, place)) for seed in SEEDS for place in range(count)]


def test_a_whole_batch_stays_whole_where_a_run_goes_on() -> None:
    """So that its texts are computed beside the same others as in a run nobody disturbed."""
    made, batches = Made(Path("parts")), cut((0,), 12, 4)
    made.add(whole(batches[1]))
    made.add(part(0, 8))
    assert made.left(batches) == [batches[0], Batch(0, (9, 10, 11))]


def test_a_text_sampled_twice_is_refused(tmp_path: Path) -> None:
    made = Made(tmp_path)
    made.add(part(0, 0, 1))
    made.add(part(1, 0, 1))
    with pytest.raises(Failed, match=rf"Text 1 of seed 0 was sampled twice: the records in {tmp_path}"):
        made.add(part(0, 1, 2))


def test_a_gap_and_a_text_too_many_are_refused() -> None:
    batches, made = cut((0, 1), 3, 2), Made(Path("parts"))
    made.add(part(0, 0, 1, 2))
    made.add(part(1, 0, 2))
    with pytest.raises(Failed, match="Text 1 of seed 1 was not sampled"):
        made.all_of(batches)
    made.add(part(1, 1, 3))
    with pytest.raises(Failed, match="Text 3 of seed 1 was sampled, and nobody wants it"):
        made.all_of(batches)


def test_records_come_back(tmp_path: Path) -> None:
    given = [part(0, 0, 1), part(0, 2), part(-3, 0, 5, 6), Part(1, (0,), ((),))]
    for each in given:
        write_part(tmp_path, each)
    assert sorted(read_parts(tmp_path), key=lambda each: given.index(each)) == given


@pytest.mark.parametrize(
    "content",
    ["", "[]", '{"seed": 0, "places": [0, 1], "ids"', '{"seed": 0, "places": [0, 1], "ids": [[5]]}'],
)
def test_a_damaged_record_is_named(tmp_path: Path, content: str) -> None:
    write_part(tmp_path, part(0, 0))
    (tmp_path / "0-1-2.json").write_text(content)
    with pytest.raises(Failed, match=r"0-1-2\.json .*Delete it and run again"):
        list(read_parts(tmp_path))
