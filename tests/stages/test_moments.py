"""Moments are those of all numbers, however they were cut into parts."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from elf.stages.moments import Moments, combine, moments_of

NUMBERS = arrays(np.float64, st.integers(1, 60), elements=st.floats(-1e4, 1e4))


@given(NUMBERS, st.lists(st.integers(0, 60), max_size=5), st.randoms())
def test_cutting_and_order_change_nothing(values: np.ndarray, cuts: list[int], random) -> None:
    parts = [moments_of(piece) for piece in np.split(values, sorted(min(cut, len(values)) for cut in cuts))]
    whole = combine(parts)
    random.shuffle(parts)
    assert combine(parts) == whole
    assert whole.count == len(values)
    assert (whole.low, whole.high) == (values.min(), values.max())
    assert whole.mean == pytest.approx(values.mean(), abs=1e-9)
    assert whole.std == pytest.approx(values.std(), abs=1e-3)


@given(NUMBERS)
def test_json_keeps_every_bit(values: np.ndarray) -> None:
    moments = moments_of(values)
    assert Moments(**json.loads(json.dumps(moments.plain()))) == moments


@given(st.floats(-1e4, 1e4), st.integers(1, 60))
def test_equal_numbers_deviate_by_nothing(value: float, count: int) -> None:
    assert combine([moments_of(np.full(count, value)), moments_of(np.full(3, value))]).std == 0


def test_parts_without_numbers_do_not_count() -> None:
    nothing = moments_of(np.zeros((0, 4)))
    assert nothing.count == 0
    some = moments_of(np.array([3.0, 5.0]))
    assert combine([nothing, some, nothing]) == some
    assert combine([nothing]) == nothing
    assert math.isfinite(json.loads(json.dumps(nothing.plain()))["low"])
