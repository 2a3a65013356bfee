from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elf.stages.packing import PairPacker, Row, RowShards, TextPacker
from elf.stages.rows import ids_of_shard

END = 1
Sides = st.lists(st.lists(st.integers(2, 9), min_size=1, max_size=12), max_size=12)
NOTHING = np.array([], dtype=np.int32)


def pack(packer: TextPacker | PairPacker, documents: list[tuple[list[int], list[int]]]) -> list[Row]:
    rows: list[Row] = []
    for index, (source, target) in enumerate(documents):
        if packer.full:
            break
        rows += packer.add(f"d{index}", np.array(source, np.int32), np.array(target, np.int32))
    return rows + packer.finish()


@given(documents=Sides, length=st.integers(1, 9), pad=st.booleans(), limit=st.none() | st.integers(1, 5))
def test_text_is_the_documents_joined_by_end_marks(
    documents: list[list[int]], length: int, pad: bool, limit: int | None
) -> None:
    packer = TextPacker(length, END, pad=pad, rows=limit)
    rows = pack(packer, [([], ids) for ids in documents])
    stream = [token for ids in documents for token in (*ids, END)]
    kept = [token for row in rows for token in row.ids[: row.length].tolist()]
    assert kept == stream[: len(kept)]
    assert all(row.ids.shape == (length,) and (row.ids[row.length :] == END).all() for row in rows)
    assert all(row.length == length for row in rows[:-1])
    if limit is None:
        assert len(kept) + packer.dropped == len(stream)
        assert len(rows) == (-(-len(stream) // length) if pad else len(stream) // length)
    else:
        assert len(rows) <= limit
    # A document lost tokens exactly if some of it, up to its end mark, is not in a row.
    ends = np.cumsum([len(ids) + 1 for ids in documents])
    seen = len(documents) if limit is None or not packer.full else int(np.searchsorted(ends, len(kept))) + 1
    lost = [f"d{index}" for index in range(min(seen, len(documents))) if ends[index] > len(kept)]
    assert packer.cut.first == lost
    for row, start in zip(rows, np.cumsum([0, *(row.length for row in rows)]), strict=False):
        inside = [
            f"d{i}"
            for i, end in enumerate(ends)
            if end > start and end - len(documents[i]) - 1 < start + row.length
        ]
        assert list(row.documents) == inside


@given(
    pairs=st.lists(st.tuples(*[st.lists(st.integers(2, 9), min_size=1, max_size=14)] * 2), max_size=6),
    max_source=st.integers(1, 6),
    room=st.integers(2, 6),
)
def test_a_pair_is_condition_target_and_end_marks(
    pairs: list[tuple[list[int], list[int]]], max_source: int, room: int
) -> None:
    length = max_source + room
    packer = PairPacker(length, END, max_source=max_source, rows=None)
    rows = pack(packer, pairs)
    assert len(rows) == len(pairs)
    for row, (source, target) in zip(rows, pairs, strict=True):
        ids = row.ids.tolist()
        assert row.condition == min(len(source), max_source)
        assert ids[: row.condition] == source[: row.condition]
        text = ids[row.condition : row.length]
        assert text[-1] == END
        assert END not in text[:-1]
        assert text[:-1] == target[: len(text) - 1]
        assert len(text) == min(len(target) + 1, length - row.condition)
        assert ids[row.length :] == [END] * (length - row.length)
    assert sum(row.length for row in rows) + packer.dropped == sum(len(s) + len(t) + 1 for s, t in pairs)
    assert packer.cut_sources == sum(len(source) > max_source for source, _ in pairs)


def test_shards_hold_a_fixed_number_of_rows_as_plain_parquet(tmp_path: Path) -> None:
    shards = RowShards(tmp_path, shard_rows=4)
    rows = [
        Row(np.arange(3, dtype=np.int32) + index, index % 2, 3, (f"d{index}", "ü")) for index in range(10)
    ]
    for row in rows:
        shards.add(row)
    shards.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"part-{index:05d}.parquet" for index in range(3)
    ]
    table = pq.read_table(tmp_path)
    assert table["input_ids"].to_pylist() == [row.ids.tolist() for row in rows]
    assert table["condition_length"].to_pylist() == [index % 2 for index in range(10)]
    assert table["row"].to_pylist() == list(range(10))
    assert table["documents"].to_pylist()[3] == ["d3", "ü"]
    mapped = ids_of_shard(tmp_path / "part-00001.parquet", 3)
    assert isinstance(mapped, np.memmap)
    assert mapped.tolist() == [row.ids.tolist() for row in rows[4:8]]


def test_a_full_shard_is_still_one_page(tmp_path: Path) -> None:
    shards = RowShards(tmp_path)
    wide = np.random.default_rng(0).integers(0, 32100, (shards.shard_rows, 64)).astype(np.int32)
    for ids in wide:
        shards.add(Row(ids, 0, 64, ("d",)))
    assert np.array_equal(ids_of_shard(tmp_path / "part-00000.parquet", 64), wide)


@pytest.mark.parametrize("pad", [True, False])
def test_nothing_in_nothing_out(pad: bool) -> None:
    assert pack(TextPacker(4, END, pad=pad, rows=None), []) == []
