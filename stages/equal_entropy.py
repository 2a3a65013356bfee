"""Gen-PPL at one entropy: the only fair way to set a cautious sampler beside a bold one.

Both numbers fall together when a sampler plays safe. Between the two points of a series on either side of the reference
entropy (real text's, or one that was asked for), log Gen-PPL is drawn straight over entropy and read off there. A
series that lies on one side of it is not extrapolated.

The interval is of draws of texts, those of the real text too: every point is made anew from each draw, and the value
read off the series as it then lies. Texts that two settings make of the same noise are drawn together.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from elf.stages.intervals import DRAWS, draw_texts
from elf.stages.series import Array, Point, Series

MOST_OUTSIDE = 0.025
"""Share of draws in which the reference may lie outside the series for an interval still to be told."""


@dataclass(frozen=True, slots=True, eq=False)
class Reference:
    """The entropy at which series are compared, nats, and where it comes from; ``point`` is the real text it is of."""

    entropy: float
    origin: str
    point: Point | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Crossing:
    """Where a series passes the reference; without a value, ``reason`` says why."""

    series: Series
    reference: Reference
    ppl: float | None
    between: tuple[Point, Point] | None
    interval: tuple[float, float] | None
    reason: str = ""


def cross(series: Series, reference: Reference) -> Crossing:
    """The series' Gen-PPL at the reference's entropy."""
    ordered = sorted(series.points, key=lambda point: point.entropy)
    entropies = np.array([point.entropy for point in ordered])
    value = _read_off(entropies, np.log([point.ppl for point in ordered]), reference.entropy)
    if np.isnan(value):
        range_ = f"{entropies[0]:.2f} to {entropies[-1]:.2f} nats"
        return Crossing(series, reference, None, None, None, f"outside the measured range, {range_}")
    place = int(np.clip(np.searchsorted(entropies, reference.entropy), 1, len(ordered) - 1))
    interval, reason = _interval(series.points, reference)
    between = ordered[place - 1], ordered[place]
    return Crossing(series, reference, float(np.exp(value)), between, interval, reason)


def _read_off(entropies: Array, logs: Array, at: float) -> float:
    """Linear between neighbours of entropies in rising order; NaN outside of them."""
    return float(np.interp(at, entropies, logs, left=np.nan, right=np.nan))


def _interval(points: Sequence[Point], reference: Reference) -> tuple[tuple[float, float] | None, str]:
    known = [*points, *([reference.point] if reference.point is not None else [])]
    if any(len(group) < 2 for point in known for group in point.groups) or not all(p.groups for p in known):
        return None, "no interval: fewer than two texts of a seed"
    drawn = [_redraw(point, stream=0) for point in points]
    at = np.full(DRAWS, reference.entropy)
    if reference.point is not None:
        at = _redraw(reference.point, stream=1)[0]
    entropies = np.stack([entropy for entropy, _ in drawn], axis=1)
    logs = np.stack([log for _, log in drawn], axis=1)
    order = np.argsort(entropies, axis=1)
    entropies, logs = (np.take_along_axis(each, order, axis=1) for each in (entropies, logs))
    values = np.array([_read_off(*each) for each in zip(entropies, logs, at, strict=True)])
    outside = int(np.isnan(values).sum())
    if outside > MOST_OUTSIDE * DRAWS:
        return None, f"no interval: outside the measured range in {outside} of {DRAWS:,} draws"
    low, high = np.exp(np.nanpercentile(values, [2.5, 97.5]))
    return (float(low), float(high)), ""


def _redraw(point: Point, *, stream: int) -> tuple[Array, Array]:
    """Entropy and log Gen-PPL of every draw, (DRAWS,) each."""
    entropy, ppl = np.zeros(DRAWS), np.zeros(DRAWS)
    for times, group in zip(draw_texts(map(len, point.groups), stream=stream), point.groups, strict=True):
        nll, counted, sums, texts = (times @ group).T
        with np.errstate(divide="ignore", invalid="ignore"):
            ppl += np.exp(nll / counted) / len(point.groups)
            entropy += sums / texts / len(point.groups)
    return entropy, np.log(ppl)
