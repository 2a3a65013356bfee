import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elf.stages.textstats import (
    count_repeats,
    distinct,
    find_duplicates,
    ngrams,
    unigram_entropy,
    words_of,
)


def test_words_are_lower_cased_runs_with_inner_apostrophes():
    assert words_of("Don't stop — “Élan” 1,024 times, rock 'n' roll_2!") == [
        "don't", "stop", "élan", "1", "024", "times", "rock", "n", "roll", "2",
    ]  # fmt: skip


def test_repeats_count_what_came_before_in_the_same_text():
    assert count_repeats(["a", "b", "c", "d", "a", "b", "c", "d"], 4) == (1, 5)
    assert count_repeats(["a"] * 10, 4) == (6, 7)
    assert count_repeats(["a", "b", "c"], 4) == (0, 0)


def test_distinct_pools_texts():
    assert distinct([["a", "b"], ["a", "b"]], 1) == 0.5
    assert distinct([["a", "b"], ["b", "a"]], 2) == 1.0
    assert distinct([["a"], []], 2) is None


def test_entropy_of_known_cases():
    assert unigram_entropy([]) is None
    assert unigram_entropy([7] * 9) == 0.0
    assert unigram_entropy([1, 2, 3, 4]) == pytest.approx(math.log(4), rel=1e-15)
    assert unigram_entropy([1, 1, 2]) == pytest.approx(-2 / 3 * math.log(2 / 3) - math.log(1 / 3) / 3)


def test_duplicates_are_later_copies_and_never_empties():
    assert find_duplicates(["a", "", "b", "a ", "", "a"]) == [False, False, False, True, False, True]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=40))
def test_entropy_lies_between_zero_and_log_of_kinds_and_ignores_order(ids: list[int]):
    entropy = unigram_entropy(ids)
    assert entropy is not None
    assert 0.0 <= entropy <= math.log(len(set(ids))) + 1e-12
    assert unigram_entropy(sorted(ids)) == pytest.approx(entropy, abs=1e-12)


@given(st.lists(st.sampled_from("abc"), max_size=20), st.integers(1, 5))
def test_every_ngram_is_a_window(words: list[str], n: int):
    every = ngrams(words, n)
    assert len(every) == max(0, len(words) - n + 1)
    assert all(list(gram) == words[i : i + n] for i, gram in enumerate(every))
