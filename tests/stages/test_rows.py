from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from tokens import make_tokens

from elf.cache.errors import Damaged
from elf.stages.packing import Row, RowShards
from elf.stages.rows import TokenRows, ids_of_shard

WORDS = "the old market lies by a river".split()  # noqa: SIM905


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    """37 rows of 4 tokens in shards of 5, each token its own number."""
    folder = make_tokens(tmp_path / "tokens", ["the old market lies by a"], words=WORDS, length=4)
    for path in (folder / "rows").iterdir():
        path.unlink()
    shards = RowShards(folder / "rows", shard_rows=5)
    for index in range(37):
        shards.add(Row(np.arange(4, dtype=np.int32) + 4 * index, index % 3, 1 + index % 4, (f"d{index}",)))
    shards.close()
    (folder / "counts.json").write_text('{"rows": 37}')
    return folder


def test_rows_in_any_order_equal_the_table(tokens: Path) -> None:
    rows = TokenRows.open(tokens)
    table = pq.read_table(tokens / "rows")
    indices = np.random.default_rng(0).integers(0, 37, 100)
    assert rows.ids(indices).dtype == np.int32
    assert rows.ids(indices).tolist() == [table["input_ids"][int(index)].as_py() for index in indices]
    assert rows.condition_lengths(indices).tolist() == (indices % 3).tolist()
    assert rows.lengths(indices).tolist() == (1 + indices % 4).tolist()
    assert [rows.documents(index) for index in (0, 17, 36)] == [("d0",), ("d17",), ("d36",)]
    assert rows.ids(np.array([], dtype=np.int64)).shape == (0, 4)


def test_the_ids_are_mapped_not_loaded(tokens: Path) -> None:
    mapped = ids_of_shard(tokens / "rows" / "part-00000.parquet", 4)
    assert isinstance(mapped, np.memmap)
    assert not mapped.flags.writeable


@pytest.mark.parametrize("index", [-1, 37])
def test_a_row_outside_is_refused(tokens: Path, index: int) -> None:
    with pytest.raises(IndexError, match="37"):
        TokenRows.open(tokens).ids(np.array([0, index]))


@pytest.mark.parametrize("lost", [0, 3, 7])
def test_a_missing_shard_is_noticed(tokens: Path, lost: int) -> None:
    (tokens / "rows" / f"part-{lost:05d}.parquet").unlink()
    with pytest.raises(Damaged, match="shard"):
        TokenRows.open(tokens)


@pytest.mark.parametrize("damage", ["cut", "compressed", "narrow", "scribbled"])
def test_a_shard_that_is_not_ours_is_refused(tokens: Path, damage: str) -> None:
    path = tokens / "rows" / "part-00002.parquet"
    table = pq.read_table(path)
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-10])
    elif damage == "compressed":
        pq.write_table(table, path, compression="zstd")
    elif damage == "scribbled":
        content = bytearray(path.read_bytes())
        content[4 : len(content) // 2] = bytes(len(content) // 2 - 4)
        path.write_bytes(content)
    else:
        shards = RowShards(tokens / "narrow")
        (tokens / "narrow").mkdir()
        shards.add(Row(np.arange(3, dtype=np.int32), 0, 3, ("d",)))
        shards.close()
        path.write_bytes((tokens / "narrow" / "part-00000.parquet").read_bytes())
    with pytest.raises(Damaged, match=r"part-00002\.parquet"):
        TokenRows.open(tokens)
