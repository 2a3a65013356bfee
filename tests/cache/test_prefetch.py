"""The prefetching thread hands out the schedule's batches, in order, from few buffers, and can be stopped."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elf.cache.layout import ArrayLayout, RaggedLayout
from elf.cache.prefetch import Prefetch, make_buffers
from elf.cache.rows import RaggedRows, Rows

SCHEDULE = [[4, 0, 9], [1, 1, 2], [8, 7], [3, 5, 6], [0]]


@pytest.fixture
def data(draw: Callable[..., Any]) -> Any:
    return draw((10, 8, 4), "float16")


@pytest.fixture
def rows(tmp_path: Path, data: Any, rows_into: Callable[..., None]) -> Rows:
    rows_into(tmp_path, ArrayLayout(10, 8, 4, "float16", 4), data)
    return Rows.open(tmp_path)


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "prefetch"]


@pytest.mark.parametrize("count", [2, 3, 8])
@pytest.mark.parametrize("ahead", [0, 1, 20])
def test_batches_come_in_the_order_of_the_schedule(rows: Rows, data: Any, count: int, ahead: int) -> None:
    buffers = make_buffers(rows, batch=3, count=count)
    seen: list[list[int]] = []
    with Prefetch(rows, SCHEDULE, buffers=buffers, ahead=ahead) as batches:
        for batch in batches:
            seen.append(list(batch.indices))
            assert np.array_equal(batch.rows, data[batch.indices])
            assert batch.lengths.tolist() == [8] * len(batch.indices)
            assert any(np.shares_memory(batch.rows, buffer) for buffer in buffers)
        assert next(batches, None) is None
    assert seen == SCHEDULE
    assert threads() == []


def test_a_batch_stays_as_it_is_until_the_next_is_asked_for(rows: Rows, data: Any) -> None:
    with Prefetch(rows, SCHEDULE * 40, buffers=make_buffers(rows, batch=3, count=2)) as batches:
        for batch in batches:
            assert all(np.array_equal(batch.rows, data[batch.indices]) for _ in range(20))


def test_rows_are_asked_for_ahead_and_not_without_end(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[int]] = []
    gathered: list[tuple[int, list[int]]] = []
    gather = rows.gather

    def record(indices: Any, out: Any) -> Any:
        gathered.append((len(asked), list(indices)))
        return gather(indices, out)

    monkeypatch.setattr(rows, "willneed", asked.append)
    monkeypatch.setattr(rows, "gather", record)
    with Prefetch(rows, SCHEDULE, buffers=make_buffers(rows, batch=3, count=2), ahead=2) as batches:
        assert [list(batch.indices) for batch in batches] == SCHEDULE
    assert [count for count, _ in gathered] == [3, 4, 5, 5, 5]
    assert asked == SCHEDULE


def test_an_endless_schedule_is_left_by_closing(rows: Rows) -> None:
    def forever() -> Iterator[list[int]]:
        while True:
            yield [1, 2, 3]

    batches = Prefetch(rows, forever(), buffers=make_buffers(rows, batch=3))
    assert len(next(batches).rows) == 3
    batches.close()
    assert threads() == []
    assert list(batches) == []


@pytest.mark.parametrize("schedule", [[[0], [10]], [[0], [0, 1, 2, 3]]])
def test_an_error_comes_where_the_batch_would_have(rows: Rows, schedule: list[list[int]]) -> None:
    with Prefetch(rows, schedule, buffers=make_buffers(rows, batch=3), ahead=0) as batches:
        next(batches)
        for _ in range(2):
            with pytest.raises((IndexError, ValueError)):
                next(batches)


def test_one_buffer_is_too_few(rows: Rows) -> None:
    with pytest.raises(ValueError, match="2 are needed"):
        Prefetch(rows, SCHEDULE, buffers=make_buffers(rows, batch=3, count=1))


def test_ragged_rows_are_prefetched_alike(
    tmp_path: Path, draw: Callable[..., Any], ragged_into: Callable[..., None]
) -> None:
    lengths = np.arange(1, 11, dtype=np.int32)
    data = [draw((int(n), 4), "float16", seed) for seed, n in enumerate(lengths)]
    ragged_into(tmp_path, RaggedLayout(lengths, 16, 4, "float16", 128), data)
    rows = RaggedRows.open(tmp_path)
    with Prefetch(rows, SCHEDULE, buffers=make_buffers(rows, batch=3)) as batches:
        for batch in batches:
            for row, found, length in zip(batch.indices, batch.rows, batch.lengths, strict=True):
                assert np.array_equal(found[:length], data[row])
                assert not found[length:].any()
