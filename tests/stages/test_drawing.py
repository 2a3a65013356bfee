"""Figures as a page and a paper show them."""

import pytest
from matplotlib.figure import Figure

from elf.stages.drawing import scale_log


@pytest.mark.parametrize(
    ("low", "high", "told"), [(4, 60, [5, 10, 20, 50]), (2e-6, 5, [1e-5, 1e-4, 1e-3, 0.01, 0.1, 1])]
)
def test_ticks_of_a_logarithmic_axis_do_not_crowd(low: float, high: float, told: list[float]) -> None:
    axes = Figure().add_subplot()
    scale_log(axes)
    axes.set_ylim(low, high)
    shown = [tick for tick in axes.get_yticks() if low <= tick <= high]
    assert shown == pytest.approx(told)
