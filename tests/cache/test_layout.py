"""Where rows lie: every row once, none across shards, as few shards as the order allows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elf.cache.layout import ArrayLayout, RaggedLayout, footer, used_slots

LENGTHS = st.lists(st.integers(0, 200), min_size=1, max_size=60).filter(any)


@given(LENGTHS, st.sampled_from([256, 384, 512]))
def test_ragged_rows_lie_in_order_without_overlap_inside_one_shard(lengths: list[int], capacity: int) -> None:
    layout = RaggedLayout(np.array(lengths, np.int32), 200, 4, "float16", capacity)
    assert [row for shard in range(layout.shards) for row in layout.rows_of(shard)] == list(
        range(len(lengths))
    )
    end = 0
    places = zip(*(part.tolist() for part in layout.locate(np.arange(layout.rows))), strict=True)
    for (row, length), (shard, start, count) in zip(enumerate(lengths), places, strict=True):
        assert row in layout.rows_of(shard)
        assert count == length
        assert start + count <= capacity
        assert shard * capacity + start == layout.starts[row] >= end
        end = int(layout.starts[row]) + count
    assert layout.total == end
    for shard in range(1, layout.shards):
        first = layout.rows_of(shard).start
        assert layout.tokens_of(shard - 1).sum() + lengths[first] > capacity


@given(st.integers(1, 40), st.integers(1, 12))
def test_fixed_rows_fill_shard_after_shard(rows: int, shard_rows: int) -> None:
    layout = ArrayLayout(rows, 8, 4, "float32", shard_rows)
    places = zip(*(part.tolist() for part in layout.locate(np.arange(rows))), strict=True)
    assert list(places) == [(row // shard_rows, row % shard_rows * 8, 8) for row in range(rows)]
    assert sum(len(layout.rows_of(shard)) for shard in range(layout.shards)) == rows
    assert used_slots(layout, layout.shards - 1) == len(layout.rows_of(layout.shards - 1))


def test_the_index_is_sixteen_bytes_a_slot_and_its_crc() -> None:
    index = footer(slots=3, used=2, chunk_bytes=100)
    assert len(index) == 16 * 3 + 4
    numbers = np.frombuffer(index[:-4], "<u8").reshape(3, 2)
    assert numbers.tolist() == [[0, 100], [100, 100], [2**64 - 1, 2**64 - 1]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": 0}, "rows is 0"),
        ({"length": -1}, "length is -1"),
        ({"width": 0}, "width is 0"),
        ({"shard_rows": 0}, "shard_rows is 0"),
        ({"dtype": "float64"}, "float64"),
    ],
)
def test_an_impossible_layout_is_refused(change: dict[str, object], message: str) -> None:
    numbers = {"rows": 1, "length": 1, "width": 1, "dtype": "float16", "shard_rows": 1}
    with pytest.raises(ValueError, match=message):
        ArrayLayout(**(numbers | change))  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("lengths", "length", "capacity", "message"),
    [
        ([1, 9], 8, 128, "row 1 has 9 tokens"),
        ([1, -1], 8, 128, "row 1 has -1 tokens"),
        ([0, 0], 8, 128, "no row has a token"),
        ([], 8, 128, "rows is 0"),
        ([1], 8, 100, "multiple of 128"),
        ([1], 200, 128, "whole row of 200"),
    ],
)
def test_impossible_ragged_rows_are_refused(
    lengths: list[int], length: int, capacity: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        RaggedLayout(np.array(lengths, np.int32), length, 4, "float16", capacity)


def test_there_is_no_shard_beyond_the_last() -> None:
    layout = ArrayLayout(10, 8, 4, "float32", 4)
    for shard in (-1, 3):
        with pytest.raises(IndexError, match=f"no shard {shard}"):
            layout.rows_of(shard)
