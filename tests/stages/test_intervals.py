import numpy as np
import pytest

from elf.stages.intervals import Items, estimate, standard_error


def items(over: list[float], under: list[float] | None = None) -> Items:
    return Items(np.array(over, float), np.array(under if under is not None else [1.0] * len(over), float))


def test_a_mean_has_the_textbook_error():
    values = [1.0, 2.0, 4.0, 9.0]
    score = estimate([items(values)])
    assert score is not None
    assert score.value == 4.0
    assert score.se_item == pytest.approx(np.std(values, ddof=1) / 2)
    assert score.se_seed is None
    assert (score.n, score.seeds, score.weight) == (4, 1, 4.0)


def test_a_population_s_error_is_over_n():
    values = [1.0, 2.0, 4.0, 9.0]
    score = estimate([items(values), items(values)], population=True)
    assert score is not None
    assert score.se_item == pytest.approx(np.std(values) / 2 / np.sqrt(2))
    alone = estimate([items([1.0])], population=True)
    assert alone is not None
    assert alone.se_item is None


def test_seeds_are_averaged_and_their_spread_is_another_number():
    score = estimate([items([1.0, 3.0]), items([5.0, 7.0])])
    assert score is not None
    assert score.value == 4.0
    assert score.se_seed == pytest.approx(2.0)
    assert score.se_item == pytest.approx(np.sqrt(1.0 + 1.0) / 2)


def test_perplexity_is_the_exponential_of_pooled_nll_not_a_mean_of_perplexities():
    score = estimate([items([10.0, 90.0], [10, 30])], exponential=True)
    assert score is not None
    assert score.value == pytest.approx(np.exp(100 / 40))
    assert score.weight == 40


def test_linearised_error_and_bootstrap_agree_on_many_items():
    random = np.random.default_rng(3)
    lengths = random.integers(10, 60, 800).astype(float)
    nll = lengths * random.normal(4.0, 0.4, 800)
    score = estimate([Items(nll, lengths)], exponential=True)
    assert score is not None
    assert score.se_item is not None
    assert score.interval is not None
    low, high = score.interval
    assert low < score.value < high
    assert (high - low) / (2 * 1.96) == pytest.approx(score.se_item, rel=0.1)


def test_items_without_anything_to_count_are_left_out():
    score = estimate([items([5.0, 0.0], [2, 0]), items([0.0], [0])])
    assert score is not None
    assert (score.value, score.n, score.seeds) == (2.5, 1, 1)
    assert score.se_item is None
    assert score.interval is None
    assert estimate([items([0.0], [0])]) is None
    assert estimate([]) is None


def test_standard_error_needs_two():
    assert standard_error([1.0]) is None
    assert standard_error([1.0, 3.0]) == pytest.approx(1.0)


def test_bootstrap_is_the_same_every_time():
    groups = [items([1.0, 2.0, 5.0]), items([2.0, 2.0, 3.0])]
    assert estimate(groups) == estimate(groups)
