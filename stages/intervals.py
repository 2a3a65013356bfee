"""A score with its uncertainty, two kinds that must not be mistaken for each other.

Every score here is a ratio Σ numerator / Σ denominator over the texts of one seed (a mean is the ratio whose
denominators are 1), for Gen-PPL its exponential. The reported value is the mean of the seeds' scores.

* SE_seed: standard deviation (n − 1) of the seeds' scores over √seeds: what another seed of the same size would
  change. Absent with fewer than two seeds.
* SE_item: the same texts being a draw from all texts: linearised variance of the ratio per seed, seeds combined
  as an average of independent values. The variance of a seed's texts is that of a sample (over n − 1), or, where
  a score is published so, of a population (over n).
* interval: 2.5 and 97.5 percentiles of 1,000 bootstrap draws of texts within each seed, fixed random numbers.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

DRAWS = 1000
FEW = 200
"""Fewer texts than this are too few for a number to be quoted without a warning."""


@dataclass(frozen=True, slots=True)
class Items:
    """Texts of one seed: numerators and denominators, float64 of one shape (n,)."""

    over: NDArray[np.float64]
    under: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A score; `n` texts with something to count in `seeds` seeds, `weight` the sum of denominators."""

    value: float
    se_seed: float | None
    se_item: float | None
    interval: tuple[float, float] | None
    n: int
    seeds: int
    weight: float


def estimate(
    groups: Sequence[Items], *, exponential: bool = False, population: bool = False
) -> Estimate | None:
    """The score of `groups`, one per seed; None where no text of any seed has anything to count.

    Seeds without anything to count are left out: they have no score. `exponential` reports exp(ratio);
    `population` takes the variance of texts over n for SE_item.
    """
    counted = [_counted(group) for group in groups]
    kept = [group for group in counted if group.under.size]
    if not kept:
        return None
    values = [_value(group.over.sum() / group.under.sum(), exponential) for group in kept]
    errors = [_item_error(group, exponential, 0 if population else 1) for group in kept]
    known = [error for error in errors if error is not None]
    return Estimate(
        value=float(np.mean(values)),
        se_seed=standard_error(values),
        se_item=float(np.sqrt(np.square(known).sum()) / len(kept)) if len(known) == len(kept) else None,
        interval=_bootstrap(kept, exponential) if len(known) == len(kept) else None,
        n=sum(group.under.size for group in kept),
        seeds=len(kept),
        weight=float(sum(group.under.sum() for group in kept)),
    )


def estimate_corpus(
    groups: Sequence[NDArray[np.float64]], value: Callable[[NDArray[np.float64]], float]
) -> Estimate:
    """A score of whole corpora, `value` of the summed statistics of the texts; groups are (n, k), one per seed.

    Such a score is no ratio: SE_item is the standard deviation of the bootstrap draws.
    """
    values = [value(group.sum(axis=0)) for group in groups]
    draws = _draws(groups, lambda times, group: np.array([value(sums) for sums in times @ group]))
    enough = all(len(group) > 1 for group in groups)
    low, high = np.percentile(draws, [2.5, 97.5])
    return Estimate(
        value=float(np.mean(values)),
        se_seed=standard_error(values),
        se_item=float(np.std(draws, ddof=1)) if enough else None,
        interval=(float(low), float(high)) if enough else None,
        n=sum(len(group) for group in groups),
        seeds=len(groups),
        weight=float(sum(len(group) for group in groups)),
    )


@dataclass(frozen=True, slots=True)
class Difference:
    """Of two scores of the same items: second − first, its interval over draws of items that are the same for both, and
    the share ``p`` of draws, two-sided, in which it has not the sign that was found."""

    first: float
    second: float
    interval: tuple[float, float]
    p: float
    n: int

    @property
    def value(self) -> float:
        return self.second - self.first


def compare(
    first: Sequence[NDArray[np.float64]],
    second: Sequence[NDArray[np.float64]],
    value: Callable[[NDArray[np.float64]], float],
) -> Difference | None:
    """Paired bootstrap of a score, ``value`` of summed statistics; item i of a group is the same in both, groups are
    (n, k), one per seed. None where a side has nothing to count or there are fewer than two items."""
    if any(len(group) < 2 for group in first):
        return None

    def scores(groups: Sequence[NDArray[np.float64]]) -> tuple[float, NDArray[np.float64]]:
        whole = float(np.mean([value(group.sum(axis=0)) for group in groups]))
        return whole, _draws(groups, lambda times, group: np.array([value(sums) for sums in times @ group]))

    with np.errstate(invalid="ignore", divide="ignore"):
        (before, drawn_before), (after, drawn_after) = scores(first), scores(second)
    if not (np.isfinite(before) and np.isfinite(after)):
        return None
    # The same random numbers draw the same items on both sides; a draw in which a side has nothing says nothing.
    drawn = drawn_after - drawn_before
    drawn = drawn[np.isfinite(drawn)]
    low, high = np.percentile(drawn, [2.5, 97.5])
    against = min(int((drawn <= 0).sum()), int((drawn >= 0).sum()))
    p = min(1.0, (2 * against + 1) / (len(drawn) + 1))
    return Difference(before, after, (float(low), float(high)), p, sum(len(group) for group in first))


def standard_error(values: Sequence[float]) -> float | None:
    """Standard deviation (n − 1) over √n; None for fewer than two values."""
    if len(values) < 2:
        return None
    return float(np.std(values, ddof=1) / np.sqrt(len(values)))


def _counted(group: Items) -> Items:
    keep = group.under > 0
    return Items(group.over[keep], group.under[keep])


def _value(ratio: float, exponential: bool) -> float:
    return float(np.exp(ratio) if exponential else ratio)


def _item_error(group: Items, exponential: bool, missing: int) -> float | None:
    """With the variance over n − `missing`; None for fewer than two texts."""
    n = group.under.size
    if n < 2:
        return None
    total = group.under.sum()
    ratio = group.over.sum() / total
    spread = np.sqrt(n / (n - missing) * np.square(group.over - ratio * group.under).sum()) / total
    return float(spread * np.exp(ratio) if exponential else spread)


def _bootstrap(groups: Sequence[Items], exponential: bool) -> tuple[float, float]:
    def ratios(times: NDArray[np.float64], group: NDArray[np.float64]) -> NDArray[np.float64]:
        over, under = (times @ group).T
        return np.exp(over / under) if exponential else over / under

    draws = _draws([np.stack([group.over, group.under], axis=1) for group in groups], ratios)
    low, high = np.percentile(draws, [2.5, 97.5])
    return float(low), float(high)


def _draws(
    groups: Sequence[NDArray[np.float64]],
    score: Callable[[NDArray[np.float64], NDArray[np.float64]], NDArray[np.float64]],
) -> NDArray[np.float64]:
    """Mean score of the seeds for each draw; `score` takes how often each text is drawn, (DRAWS, n), and the texts."""
    times = draw_texts([len(group) for group in groups])
    return sum((score(*each) for each in zip(times, groups, strict=True)), np.zeros(DRAWS)) / len(groups)


def draw_texts(sizes: Iterable[int], *, stream: int = 0) -> Iterator[NDArray[np.float64]]:
    """For each seed, of so many texts, how often each text is drawn, (DRAWS, n): the same numbers every time, so that
    what is of the same items is drawn alike; another `stream` has numbers of its own."""
    random = np.random.Generator(np.random.PCG64(stream))
    for n in sizes:
        yield random.multinomial(n, np.full(n, 1.0 / n), size=DRAWS).astype(np.float64)
