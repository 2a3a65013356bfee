"""Self-BLEU: how much the texts of a seed say what others of the seed say (Zhu et al. 2018, arXiv 1802.01886).

The BLEU-4 of each text with all the others of its seed as its references, mean over texts, 0 to 100; the lower, the
more varied. Words are those of distinct-n. Brevity penalty against the reference nearest in length, exponential
smoothing and effective order, as sacrebleu has them for sentences. More references give higher scores, so at most MOST
texts of a seed take part, spread evenly over them, and the number of references is told.

An n-gram counts as often as the one other text that has it most: for each n-gram the two largest counts are all that
must be known, so the work grows with the number of words and not with its square.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MOST = 1000
ORDER = 4
FULL = 100.0
"""Of texts that say nothing of their own; rounding takes sacrebleu a little above."""
Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SelfBleu:
    """A score and how many references each text had."""

    value: float
    references: int


def self_bleu(texts: Sequence[Sequence[str]]) -> SelfBleu | None:
    """Of the words of a seed's texts; those without a word take no part. None where fewer than two are left."""
    from sacrebleu.metrics.bleu import BLEU

    spoken = _spread([words for words in texts if words])
    if len(spoken) < 2:
        return None
    correct = _matches(spoken)
    lengths = np.array([len(words) for words in spoken])
    scores = [
        BLEU.compute_bleu(
            correct=correct[place].tolist(),
            total=[max(0, int(length) - n) for n in range(ORDER)],
            sys_len=int(length),
            ref_len=_nearest(lengths, place),
            smooth_method="exp",
            effective_order=True,
            max_ngram_order=ORDER,
        ).score
        for place, length in enumerate(lengths)
    ]
    return SelfBleu(min(float(np.mean(scores)), FULL), len(spoken) - 1)


def _spread(texts: Sequence[Sequence[str]]) -> list[Sequence[str]]:
    if len(texts) <= MOST:
        return list(texts)
    places: list[int] = np.linspace(0, len(texts) - 1, MOST).round().astype(int).tolist()
    return [texts[place] for place in places]


def _matches(texts: Sequence[Sequence[str]]) -> Counts:
    """(texts, ORDER): of each text's n-grams, those that another text has, each as often as any one other has it."""
    owners = np.repeat(np.arange(len(texts)), [len(words) for words in texts])
    known: dict[str, int] = {}
    words = np.array([known.setdefault(word, len(known)) for text in texts for word in text])
    found, grams = np.zeros((len(texts), ORDER), np.int64), words
    for n in range(ORDER):
        if n:  # an n-gram is the one without its last word, and that word; numbered anew, so that numbers stay small
            _, grams = np.unique(grams[:-1] * len(known) + words[n:], return_inverse=True)
        whole = owners[: len(grams)] == owners[n:]
        found[:, n] = _shared(grams[whole], owners[n:][whole], len(texts))
    return found


def _shared(grams: Counts, owners: Counts, texts: int) -> Counts:
    """(texts,): how many of a text's n-grams, given with their owners, stand in another text, clipped as BLEU does."""
    pairs, counts = np.unique(grams * texts + owners, return_counts=True)
    grams, owners = pairs // texts, pairs % texts
    order = np.lexsort((-counts, grams))
    grams, owners, counts = grams[order], owners[order], counts[order]
    first = np.flatnonzero(np.diff(grams, prepend=-1))
    size = np.diff(first, append=len(grams))
    most, by, next_most = (
        counts[first],
        owners[first],
        np.where(size > 1, counts[(first + 1) % len(counts)], 0),
    )
    other = np.where(np.repeat(by, size) == owners, np.repeat(next_most, size), np.repeat(most, size))
    return np.bincount(owners, np.minimum(counts, other), minlength=texts).astype(np.int64)


def _nearest(lengths: Counts, place: int) -> int:
    """Length of the reference that is nearest in length, the shorter of two."""
    others = np.delete(lengths, place)
    away = np.abs(others - lengths[place])
    return int(others[away == away.min()].min())
