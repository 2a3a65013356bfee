"""Order of rows: a permutation per epoch, chosen by seed and epoch, readable at any place."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elf.stages.order import Order


@given(rows=st.integers(1, 700), seed=st.integers(-(2**70), 2**70), epoch=st.integers(0, 2**20))
@settings(max_examples=80, deadline=None)
def test_each_row_comes_once_an_epoch(rows: int, seed: int, epoch: int) -> None:
    found = Order(rows, seed).at(np.arange(epoch * rows, (epoch + 1) * rows))
    assert sorted(found.tolist()) == list(range(rows))


@given(rows=st.integers(1, 10**12), seed=st.integers(0, 2**32), start=st.integers(0, 10**13))
@settings(max_examples=60, deadline=None)
def test_a_place_does_not_depend_on_what_is_asked_with_it(rows: int, seed: int, start: int) -> None:
    order = Order(rows, seed)
    together = order.at(np.arange(start, start + 9))
    assert together.tolist() == [int(order.at(start + i)) for i in range(9)]
    assert together.min() >= 0
    assert together.max() < rows


@given(rows=st.integers(1, 40), batch=st.integers(1, 90))
@settings(max_examples=25, deadline=None)
def test_batches_cut_the_stream_without_gap_or_overlap(rows: int, batch: int) -> None:
    order = Order(rows, 3)
    cut = np.concatenate([order.batch(step, batch) for step in range(7)])
    assert cut.tolist() == order.at(np.arange(7 * batch)).tolist()


def test_epochs_and_seeds_give_different_orders() -> None:
    epochs = [
        tuple(Order(50, seed).at(np.arange(e * 50, e * 50 + 50))) for seed in range(4) for e in range(4)
    ]
    assert len(set(epochs)) == 16


def test_every_row_may_stand_at_every_place() -> None:
    counts = np.zeros((7, 7))
    for seed in range(1400):
        counts[np.arange(7), Order(7, seed).at(np.arange(7))] += 1
    statistic = ((counts - 200) ** 2 / 200).sum()
    assert statistic < 80, "chi-square with 36 degrees of freedom: 80 is beyond one in 20,000"


def test_neighbouring_places_are_not_related() -> None:
    found = Order(100_003, 1).at(np.arange(20_000)).astype(float)
    assert abs(np.corrcoef(found[:-1], found[1:])[0, 1]) < 0.03


def test_the_order_is_what_it_was() -> None:
    assert Order(10, 0).at(np.arange(20)).tolist() == GOLDEN


@pytest.mark.parametrize(("rows", "position"), [(0, 0), (-1, 0), (5, -1)])
def test_nonsense_is_refused(rows: int, position: int) -> None:
    with pytest.raises(ValueError, match=r"row|position"):
        Order(rows, 0).at(position)


GOLDEN = [0, 2, 3, 8, 6, 1, 7, 4, 5, 9, 3, 6, 0, 4, 7, 8, 1, 2, 9, 5]
