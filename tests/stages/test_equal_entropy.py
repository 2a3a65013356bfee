"""Gen-PPL read off a series at one entropy: the value, its neighbours, its interval, and when there is none."""

import math

import numpy as np
import pytest

from elf.stages.equal_entropy import Reference, cross
from elf.stages.intervals import Items, estimate
from elf.stages.series import Point, Series


def point(name: str, entropy: float, ppl: float, *, spread: float = 0.0, n: int = 50, seed: int = 0) -> Point:
    """`n` texts of 20 tokens whose own entropies and NLLs lie around the given ones."""
    random = np.random.default_rng(seed)
    noise = random.normal(size=(n, 2))
    noise = spread * (noise - noise.mean(axis=0)) / (noise.std(axis=0) + (n == 1))
    ones = np.ones(n)
    group = np.stack([20 * (math.log(ppl) + noise[:, 0]), 20 * ones, entropy + noise[:, 1], ones], axis=1)
    return Point(name, "", None, entropy, ppl, None, None, False, (group,))


def series(*points: Point) -> Series:
    return Series("a series", points, tuple(each.name for each in points))


def at(entropy: float, real: Point | None = None) -> Reference:
    return Reference(entropy, "stated", real)


def test_the_logarithm_is_linear_between_the_neighbours():
    found = cross(series(point("c", 5.0, 200.0), point("a", 3.0, 10.0), point("b", 4.0, 40.0)), at(3.5))
    assert found.ppl == pytest.approx(20.0)
    assert found.between is not None
    assert [each.name for each in found.between] == ["a", "b"]
    assert found.interval == pytest.approx((20.0, 20.0)), "texts that are all alike leave nothing to doubt"


@pytest.mark.parametrize("entropy", [2.99, 5.01])
def test_nothing_is_extrapolated(entropy: float):
    found = cross(series(point("a", 3.0, 10.0), point("b", 5.0, 40.0)), at(entropy))
    assert (found.ppl, found.between, found.interval) == (None, None, None)
    assert found.reason == "outside the measured range, 3.00 to 5.00 nats"


@pytest.mark.parametrize(("entropy", "ppl"), [(3.0, 10.0), (4.0, 20.0), (5.0, 40.0)])
def test_at_a_point_it_is_the_points_own(entropy: float, ppl: float):
    found = cross(series(point("a", 3.0, 10.0), point("b", 4.0, 20.0), point("c", 5.0, 40.0)), at(entropy))
    assert found.ppl == pytest.approx(ppl)
    assert found.between is not None
    assert any(each.entropy == entropy for each in found.between)


def test_the_interval_is_as_wide_as_texts_vary():
    def width(spread: float, n: int = 50) -> float:
        points = point("a", 3.0, 10.0, spread=spread, n=n), point("b", 5.0, 40.0, spread=spread, n=n, seed=1)
        found = cross(series(*points), at(4.0))
        assert found.interval is not None
        low, high = found.interval
        assert low < 20.0 < high
        return high - low

    assert width(0.4) == pytest.approx(4 * width(0.1), rel=0.15)
    assert width(0.2, n=800) == pytest.approx(width(0.2, n=50) / 4, rel=0.4)


def test_texts_of_one_noise_are_drawn_together():
    """Between two settings of the very same texts lies their own doubt, not the smaller one of a mean of two."""
    alone = point("a", 3.0, 10.0, spread=0.2)
    found = cross(series(alone, point("b", 5.0, 10.0, spread=0.2)), at(4.0))
    items = [Items(alone.groups[0][:, 0], alone.groups[0][:, 1])]
    expected = estimate(items, exponential=True)
    assert expected is not None
    assert found.interval is not None
    assert expected.interval is not None
    assert found.interval == pytest.approx(expected.interval, rel=0.01)


def test_doubt_about_real_text_is_part_of_the_interval():
    points = point("a", 3.0, 10.0), point("b", 5.0, 40.0)
    real = point("real", 4.0, 15.0, spread=0.3)
    sure, unsure = cross(series(*points), at(4.0)), cross(series(*points), at(4.0, real))
    assert sure.interval == pytest.approx((20.0, 20.0))
    assert unsure.interval is not None
    assert unsure.interval[0] < 19.5 < 20.5 < unsure.interval[1]


def test_no_interval_where_draws_leave_the_range():
    found = cross(series(point("a", 3.0, 10.0, spread=0.3), point("b", 5.0, 40.0)), at(3.01))
    assert found.ppl is not None
    assert found.interval is None
    assert found.reason.startswith("no interval: outside the measured range in ")


def test_no_interval_of_one_text_or_none():
    for lone in (point("a", 3.0, 10.0, n=1), Point("a", "", None, 3.0, 10.0, None, None, False)):
        found = cross(series(lone, point("b", 5.0, 40.0)), at(4.0))
        assert found.ppl == pytest.approx(20.0)
        assert (found.interval, found.reason) == (None, "no interval: fewer than two texts of a seed")
