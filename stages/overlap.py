"""Scores of texts against their references: BLEU and ROUGE, each in two conventions, with its signature.

    bleu            sacrebleu, lowercase, effective order (the paper's)     bleu_cased      sacrebleu's default
    rouge_1|2|l     rouge_score, F-measure, Porter stemmer (the paper's)    …_unstemmed     the same without stemmer

All run from 0 to 100. BLEU is a score of a whole corpus; ROUGE a mean over texts, whose SE_item is published as the
population's standard deviation over √n. An empty text counts as wrong in
its place. ROUGE reads the letters a–z and digits only: a text or reference without any gets 0 and is counted.
ROUGE-Lsum is not given: rows of tokens hold no line ends to split sentences at.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version

import numpy as np
from numpy.typing import NDArray
from rouge_score.rouge_scorer import RougeScorer
from rouge_score.tokenizers import DefaultTokenizer
from sacrebleu.metrics.bleu import BLEU

from elf.cache.manifest import JSON
from elf.pipeline.errors import Failed
from elf.stages.intervals import Estimate, Items, estimate, estimate_corpus
from elf.stages.texts import Text

BLEU_FORMS: Mapping[str, Callable[[], BLEU]] = {
    "bleu": lambda: BLEU(lowercase=True, effective_order=True),
    "bleu_cased": BLEU,
}
ROUGE_KINDS = {"rouge_1": "rouge1", "rouge_2": "rouge2", "rouge_l": "rougeL"}
ROUGE_FORMS = {"": True, "_unstemmed": False}
ORDER = 4
FULL = 100.0
"""Of a corpus that is its references; rounding takes sacrebleu a little above."""


@dataclass(frozen=True, slots=True)
class Overlap:
    """A score against references, what computed it, and how sure it is."""

    estimate: Estimate
    signature: str


@dataclass(frozen=True, slots=True)
class Statistics:
    """A score as sums: ``groups`` hold (texts, k) numbers, one array a seed, and ``value`` is the score of their sums;
    ``mean`` where it is a mean over texts."""

    groups: Sequence[NDArray[np.float64]]
    value: Callable[[NDArray[np.float64]], float]
    signature: str
    mean: bool = False


def score_overlap(groups: Sequence[Sequence[Text]]) -> dict[str, Overlap]:
    """Every score by its name, for the texts of each seed. Raises Failed where a text has no reference."""
    made: dict[str, Overlap] = {}
    for name, found in overlap_statistics(groups).items():
        if found.mean:
            items = [Items(group[:, 0], group[:, 1]) for group in found.groups]
            mean = estimate(items, population=True)
            assert mean is not None
            made[name] = Overlap(mean, found.signature)
        else:
            made[name] = Overlap(estimate_corpus(found.groups, found.value), found.signature)
    return made


def overlap_statistics(groups: Sequence[Sequence[Text]]) -> dict[str, Statistics]:
    """What every score is made of, text by text. Raises Failed where a text has no reference."""
    pairs = [[(text.text, _reference(text)) for text in group] for group in groups]
    return {**_bleu(pairs), **_rouge(pairs)}


def count_unscorable(texts: Sequence[Text]) -> dict[str, JSON]:
    """Texts and references that are empty, those without a word that ROUGE reads, and texts that end in a full stop
    of its own, as text does that was split into words already."""
    words = DefaultTokenizer(use_stemmer=False)
    sides = {"text": [text.text for text in texts], "reference": [_reference(text) for text in texts]}
    counts: dict[str, JSON] = {}
    for side, found in sides.items():
        counts[f"empty_{side}s"] = sum(not each.strip() for each in found)
        counts[f"{side}s_without_rouge_words"] = sum(not words.tokenize(each) for each in found)
    counts["texts_split_already"] = sum(each.rstrip().endswith(" .") for each in sides["text"])
    return counts


def _reference(text: Text) -> str:
    if text.reference is None:
        raise Failed(
            f"Text {text.id!r} of seed {text.seed} has no reference though others have one; give every text its "
            "'reference', under the same id, or none."
        )
    return text.reference


def _bleu(pairs: Sequence[Sequence[tuple[str, str]]]) -> dict[str, Statistics]:
    made: dict[str, Statistics] = {}
    for name, make in BLEU_FORMS.items():
        metric = make()
        whole = BLEU(lowercase=metric.lowercase, effective_order=True)
        counted = [
            np.array([_statistics(whole, *pair) for pair in group], dtype=np.float64) for group in pairs
        ]
        metric.corpus_score([pairs[0][0][0]], [[pairs[0][0][1]]])
        made[name] = Statistics(counted, partial(_bleu_of, metric=metric), str(metric.get_signature()))
    return made


def _statistics(metric: BLEU, text: str, reference: str) -> list[int]:
    """Of one text: matching n-grams, all n-grams (n = 1 … 4), its words, the reference's words."""
    score = metric.sentence_score(text, [reference])
    return [*score.counts, *score.totals, score.sys_len, score.ref_len]


def _bleu_of(sums: NDArray[np.float64], metric: BLEU) -> float:
    """Corpus BLEU from the sums of its texts' statistics."""
    numbers = [int(value) for value in sums]
    score = BLEU.compute_bleu(
        correct=numbers[:ORDER],
        total=numbers[ORDER : 2 * ORDER],
        sys_len=numbers[-2],
        ref_len=numbers[-1],
        smooth_method="exp",
        effective_order=metric.effective_order,
        max_ngram_order=ORDER,
    )
    return min(float(score.score), FULL)


def _rouge(pairs: Sequence[Sequence[tuple[str, str]]]) -> dict[str, Statistics]:
    made: dict[str, Statistics] = {}
    for suffix, stem in ROUGE_FORMS.items():
        scorer = RougeScorer(list(ROUGE_KINDS.values()), use_stemmer=stem)
        found = [[scorer.score(reference, text) for text, reference in group] for group in pairs]
        for name, kind in ROUGE_KINDS.items():
            values = [np.array([(100 * each[kind].fmeasure, 1.0) for each in group]) for group in found]
            stemmer = "porter" if stem else "no"
            signature = (
                f"{kind}|f-measure|stemmer:{stemmer}|words:a-z0-9|rouge_score:{version('rouge-score')}"
            )
            made[name + suffix] = Statistics(
                values, lambda sums: float(sums[0] / sums[1]), signature, mean=True
            )
    return made
