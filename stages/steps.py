"""Optimiser steps are the unit of everything; epochs are turned into them here, once, exactly.

One epoch is ``rows`` rows and a step is ``batch`` of them, so E epochs are E·rows/batch steps, rounded up:
the last step is as full as all others, its rows beyond E epochs are the first of the next one. E is taken as
the decimal number that was written (1.1 of 100 rows is 110 rows, not 110.00000000000001).
"""

from dataclasses import dataclass
from fractions import Fraction
from math import ceil

from elf.stages.train_settings import Training


@dataclass(frozen=True, slots=True)
class Length:
    """``total`` optimiser steps, of which the first ``warmup`` raise the learning rate."""

    total: int
    warmup: int


def steps_in(epochs: float, rows: int, batch: int) -> int:
    """Steps of ``batch`` rows that cover ``epochs`` passes over ``rows`` rows."""
    return ceil(Fraction(repr(epochs)) * rows / batch)


def training_length(train: Training, rows: int) -> Length:
    """Steps of a training run on ``rows`` rows."""
    total = train.steps if train.epochs is None else steps_in(train.epochs, rows, train.batch)
    assert total is not None, "the section holds one of steps and epochs"
    optim = train.optim
    if optim.warmup_epochs is not None:
        return Length(total, steps_in(optim.warmup_epochs, rows, train.batch))
    return Length(total, optim.warmup_steps or 0)
