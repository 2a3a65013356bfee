"""BLEU and ROUGE against their libraries' own corpus scores, and what becomes of empty and unreadable texts."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rouge_score.rouge_scorer import RougeScorer
from sacrebleu.metrics.bleu import BLEU

from elf.pipeline.errors import Failed
from elf.stages.overlap import count_unscorable, score_overlap
from elf.stages.scores import counts_of, find_warnings, measure, score_table
from elf.stages.texts import Text

HYPOTHESES = ["The cat sat on a mat .", "a dog barks Loudly in the yard", "", "rivers run to the sea today"]
REFERENCES = [
    "The cat sat on the mat .",
    "A dog barked loudly in the yard",
    "nothing here",
    "rivers run to the sea",
]


def texts(hypotheses: list[str], references: list[str | None], seed: int = 0) -> list[Text]:
    pairs = zip(hypotheses, references, strict=True)
    return [Text(id=i, seed=seed, text=a, reference=b) for i, (a, b) in enumerate(pairs)]


def scores_of(hypotheses: list[str], references: list[str]) -> dict[str, float]:
    found = score_overlap([texts(hypotheses, list(references))])
    return {name: score.estimate.value for name, score in found.items()}


def test_bleu_is_sacrebleus_in_both_conventions_and_says_which() -> None:
    found = score_overlap([texts(HYPOTHESES, list(REFERENCES))])
    paper, default = BLEU(lowercase=True, effective_order=True), BLEU()
    for name, metric in (("bleu", paper), ("bleu_cased", default)):
        expected = metric.corpus_score(HYPOTHESES, [REFERENCES]).score
        assert found[name].estimate.value == pytest.approx(expected, rel=1e-12)
        assert found[name].signature == str(metric.get_signature())
    assert "case:lc|eff:yes" in found["bleu"].signature
    assert "case:mixed|eff:no" in found["bleu_cased"].signature
    assert found["bleu"].estimate.value > found["bleu_cased"].estimate.value


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(*[st.lists(st.sampled_from(["a", "b", "c", "D", "."]), max_size=7)] * 2),
        min_size=1,
        max_size=5,
    )
)
def test_bleu_from_summed_statistics_is_corpus_bleu(pairs: list[tuple[list[str], list[str]]]) -> None:
    hypotheses, references = ([" ".join(side) for side in sides] for sides in zip(*pairs, strict=True))
    found = scores_of(hypotheses, references)
    for name, metric in (("bleu", BLEU(lowercase=True, effective_order=True)), ("bleu_cased", BLEU())):
        expected = metric.corpus_score(hypotheses, [references]).score
        assert found[name] == pytest.approx(expected, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(("suffix", "stem"), [("", True), ("_unstemmed", False)])
def test_rouge_is_the_mean_f_measure(suffix: str, stem: bool) -> None:
    scorer = RougeScorer(["rouge1", "rouge2", "rougeL"], use_stemmer=stem)
    pairs = zip(REFERENCES, HYPOTHESES, strict=True)
    expected = [scorer.score(reference, hypothesis) for reference, hypothesis in pairs]
    found = score_overlap([texts(HYPOTHESES, list(REFERENCES))])
    for name, kind in (("rouge_1", "rouge1"), ("rouge_2", "rouge2"), ("rouge_l", "rougeL")):
        values = [100 * each[kind].fmeasure for each in expected]
        assert found[name + suffix].estimate.value == pytest.approx(np.mean(values))
        assert ("stemmer:porter" in found[name + suffix].signature) is stem
        error = np.std(values) / np.sqrt(len(values))
        assert found[name + suffix].estimate.se_item == pytest.approx(error), "of a population"


@pytest.mark.parametrize("words", range(4, 40))
def test_no_score_is_above_100(words: int) -> None:
    same = " ".join(f"word{place}" for place in range(words))
    assert max(scores_of([same] * 3, [same] * 3).values()) == 100.0


def test_line_ends_change_nothing() -> None:
    reference = ["one two three. four five six."]
    flat, broken = (
        scores_of(["four five six. one two three."], reference),
        scores_of(["four five six.\none two three."], reference),
    )
    assert flat == broken
    assert not any("lsum" in name for name in flat)


def test_empty_texts_count_as_wrong_in_their_place() -> None:
    some = scores_of(["the sea is blue today", ""], ["the sea is blue today"] * 2)
    assert some["rouge_1"] == 50
    assert 0 < some["bleu"] < scores_of(["the sea is blue today"], ["the sea is blue today"])["bleu"]
    none = scores_of(["", ""], REFERENCES[:2])
    assert set(none.values()) == {0.0}


def test_what_rouge_cannot_read_is_counted_and_said() -> None:
    made = texts(["большое море", "a river .", ""], ["большое море", "", "a river"])
    assert count_unscorable(made) == {
        "empty_texts": 1,
        "texts_without_rouge_words": 2,
        "empty_references": 1,
        "references_without_rouge_words": 2,
        "texts_split_already": 1,
    }
    measured = measure(made, [(0, 0)] * 3, None)
    table = score_table(measured, copy_ngram=8)
    said = " ".join(find_warnings(table, counts_of(measured)))
    assert "2 of 3 references without a word of a-z or 0-9: their ROUGE is 0" in said
    assert "1 of 3 references empty" in said
    assert {"bleu", "bleu_cased", "rouge_l", "rouge_l_unstemmed"} <= table.keys()


def test_one_text_without_a_reference_is_named() -> None:
    with pytest.raises(Failed, match="Text 1 of seed 0 has no reference"):
        score_overlap([texts(["a", "b"], ["a", None])])


def test_texts_without_references_have_no_such_scores() -> None:
    measured = measure(texts(["a river"], [None]), [(0, 0)], None)
    assert not {"bleu", "rouge_1"} & score_table(measured, copy_ngram=8).keys()


def test_seeds_and_items_give_their_own_errors() -> None:
    one, other = texts(HYPOTHESES, list(REFERENCES)), texts(HYPOTHESES[::-1], list(REFERENCES), seed=1)
    for score in score_overlap([one, other]).values():
        assert score.estimate.seeds == 2
        assert score.estimate.n == 8
        assert score.estimate.se_seed is not None
        assert score.estimate.se_item is not None
        low, high = score.estimate.interval or (0, 0)
        assert low <= score.estimate.value <= high
