"""Self-BLEU against sacrebleu itself, text by text, and what its definition says of special cases."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sacrebleu.metrics.bleu import BLEU

from elf.stages.selfbleu import MOST, self_bleu

WORDS = st.lists(st.sampled_from(["a", "b", "c", "d", "e"]), max_size=12)


def by_sacrebleu(texts: list[list[str]]) -> float:
    """The definition, written with whole sentences and all references."""
    metric = BLEU(tokenize="none", effective_order=True)
    lines = [" ".join(words) for words in texts]
    others = [lines[:place] + lines[place + 1 :] for place in range(len(lines))]
    return float(np.mean([metric.sentence_score(*pair).score for pair in zip(lines, others, strict=True)]))


@settings(deadline=None, max_examples=30)
@given(st.lists(WORDS, min_size=2, max_size=7))
def test_it_is_the_mean_of_sacrebleus_sentence_scores(texts: list[list[str]]):
    found = self_bleu(texts)
    spoken = [words for words in texts if words]
    if len(spoken) < 2:
        assert found is None
        return
    assert found is not None
    assert found.references == len(spoken) - 1
    assert found.value == pytest.approx(by_sacrebleu(spoken), abs=1e-9)


def test_copies_score_full_and_strangers_next_to_nothing():
    copies, strangers = (
        self_bleu([["one", "two", "three", "four"]] * 3),
        self_bleu([["a"] * 6, ["b"] * 6, ["c"] * 6]),
    )
    assert copies is not None
    assert strangers is not None
    assert copies.value == pytest.approx(100)
    assert strangers.value < 12, "what smoothing leaves of no match at all"


@pytest.mark.parametrize("words", range(4, 40))
def test_rounding_takes_it_no_further_than_100(words: int):
    copies = self_bleu([[str(place) for place in range(words)]] * 3)
    assert copies is not None
    assert copies.value == 100.0


def test_a_text_is_not_its_own_reference():
    texts = [["a", "a", "a", "b"], ["a", "c", "d", "e"], ["x", "y", "z", "w"]]
    found = self_bleu(texts)
    assert found is not None
    assert found.value == pytest.approx(by_sacrebleu(texts))


def test_of_many_texts_so_many_take_part_spread_over_all():
    texts = [[f"w{i % 7}", f"v{i % 5}", f"u{i % 3}", "end", str(i % MOST)] for i in range(MOST + 500)]
    found, again = self_bleu(texts), self_bleu(list(texts))
    assert found == again
    assert found is not None
    assert found.references == MOST - 1
    half = self_bleu(texts[:MOST])
    assert half is not None
    assert found.value != half.value, "not simply the first ones"
