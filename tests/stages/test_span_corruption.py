"""Span corruption: nothing is lost, nothing is shown twice, and rows do not depend on each other."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elf.pipeline.errors import Failed, Misconfigured
from elf.stages.span_corruption import (
    Corruption,
    find_sentinels,
    pad,
    partition,
    row_random,
)

SENTINELS = tuple(range(1099, 999, -1))
END = 1
RULE = Corruption(density=0.15, mean_span=3.0, sentinels=SENTINELS, end_id=END)


def restore(source: np.ndarray, target: np.ndarray) -> tuple[list[int], int]:
    """The row that input and target come from, and the number of spans."""
    spans: dict[int, list[int]] = {}
    last = -1
    for token in target[:-1].tolist():
        if token in SENTINELS:
            spans[token] = []
            last = token
        else:
            spans[last].append(token)
    whole: list[int] = []
    for token in source[:-1].tolist():
        whole += spans.pop(token) if token in spans else [token]
    assert not spans
    return whole, len({*target.tolist()} & {*SENTINELS})


@given(
    length=st.integers(2, 200),
    density=st.floats(0.01, 0.9),
    mean=st.floats(1, 10),
    seed=st.integers(-5, 2**40),
)
def test_input_and_target_hold_the_whole_row(length: int, density: float, mean: float, seed: int) -> None:
    rule = Corruption(density=density, mean_span=mean, sentinels=SENTINELS, end_id=END)
    ids = np.arange(2, 2 + length, dtype=np.int32)
    hidden, count = rule.spans(length)
    source, target = rule.apply(ids, row_random(seed, 3, 4))
    whole, spans = restore(source, target)
    assert whole == ids.tolist()
    assert spans == count
    assert (source[-1], target[-1]) == (END, END)
    assert source.size == length - hidden + count + 1
    assert target.size == hidden + count + 1
    used = [token for token in target.tolist() if token in SENTINELS]
    assert used == list(SENTINELS[:count])
    assert [token for token in source.tolist() if token in SENTINELS] == used


@pytest.mark.parametrize(("length", "wanted"), [(512, (77, 26)), (100, (15, 5)), (32, (5, 2)), (2, (1, 1))])
def test_share_and_spans_are_those_asked(length: int, wanted: tuple[int, int]) -> None:
    assert RULE.spans(length) == wanted


@given(total=st.integers(1, 50), data=st.data())
def test_partitions_are_whole_positive_numbers(total: int, data: st.DataObject) -> None:
    parts = data.draw(st.integers(1, total))
    found = partition(total, parts, row_random(0, 0, total))
    assert found.sum() == total
    assert found.size == parts
    assert found.min() >= 1


def test_every_partition_is_equally_likely() -> None:
    random = np.random.default_rng(0)
    counts: dict[tuple[int, ...], int] = {}
    for _ in range(3000):
        found = tuple(partition(5, 3, random).tolist())
        counts[found] = counts.get(found, 0) + 1
    assert len(counts) == 6
    assert all(380 < count < 620 for count in counts.values())


def test_every_place_is_hidden_equally_often() -> None:
    """Rows of 8 with one span of 2: seven places for it."""
    rule = Corruption(density=0.25, mean_span=2.0, sentinels=SENTINELS, end_id=END)
    counts = [0] * 8
    for step in range(1400):
        _, target = rule.apply(np.arange(10, 18), row_random(0, step, 0))
        counts[int(target[1]) - 10] += 1
    assert counts[7] == 0
    assert all(140 < count < 260 for count in counts[:7])


def test_spans_never_touch() -> None:
    rule = Corruption(density=0.5, mean_span=1.0, sentinels=SENTINELS, end_id=END)
    for step in range(50):
        source, _ = rule.apply(np.arange(10, 20), row_random(0, step, 0))
        marks = np.isin(source, SENTINELS)
        assert not (marks[1:] & marks[:-1]).any()


def test_draws_follow_seed_step_and_row_alone() -> None:
    ids = np.arange(2, 60)
    base = RULE.apply(ids, row_random(1, 2, 3))[0].tolist()
    assert RULE.apply(ids, row_random(1, 2, 3))[0].tolist() == base
    for other in ((2, 2, 3), (1, 3, 3), (1, 2, 4), (1, -1, 3), (3, 2, 1)):
        assert RULE.apply(ids, row_random(*other))[0].tolist() != base


def test_too_few_sentinels_are_refused() -> None:
    few = Corruption(density=0.5, mean_span=1.0, sentinels=SENTINELS[:3], end_id=END)
    with pytest.raises(Misconfigured, match=r"Rows of 20 tokens have 10 hidden spans .*has 3 sentinels"):
        few.spans(20)


def test_sentinels_are_found_by_name() -> None:
    specials = {"<pad>": 0, "<extra_id_1>": 8, "<extra_id_0>": 9, "<extra_id_3>": 6}
    assert find_sentinels(specials) == (9, 8)
    with pytest.raises(Failed, match="no sentinels"):
        find_sentinels({"<pad>": 0})


def test_short_rows_are_filled() -> None:
    assert pad([np.array([1, 2, 3]), np.array([4])], 0).tolist() == [[1, 2, 3], [4, 0, 0]]
