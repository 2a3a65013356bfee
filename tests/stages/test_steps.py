"""Epochs become steps exactly."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elf.stages.steps import Length, steps_in, training_length
from elf.stages.train_settings import Train

SHAPE = {"depth": 1, "hidden": 8, "heads": 1}


@given(tenths=st.integers(1, 200), rows=st.integers(1, 10**7), batch=st.integers(1, 5000))
def test_steps_cover_the_epochs_and_no_step_more(tenths: int, rows: int, batch: int) -> None:
    steps = steps_in(tenths / 10, rows, batch)
    wanted = Fraction(tenths, 10) * rows
    assert (steps - 1) * batch < wanted <= steps * batch


def test_a_decimal_is_taken_as_written() -> None:
    assert 1.1 * 100 > 110, "the trap: a ceiling of the product would be 111"
    assert steps_in(1.1, 100, 1) == 110


@pytest.mark.parametrize(
    ("given_", "length"),
    [
        ({"steps": 7}, Length(7, 0)),
        ({"epochs": 2.0}, Length(13, 0)),
        ({"steps": 7, "optim": {"warmup_steps": 3}}, Length(7, 3)),
        ({"epochs": 5.0, "optim": {"warmup_epochs": 0.5}}, Length(32, 4)),
    ],
)
def test_length_of_a_run(given_: dict[str, object], length: Length) -> None:
    train = Train.model_validate({"model": SHAPE, "batch": 8, **given_})
    assert training_length(train, rows=51) == length
