"""What can be said of texts without any language model.

A *word* is a run of letters or digits, lower-cased, with inner apostrophes kept (`don't` is one word). Every
word statistic of every row of a table (samples and controls alike) uses this one definition.

* distinct-n: different n-grams over all n-grams, of all texts of one seed together (arXiv 1510.03055).
* repeats-n: share of a text's n-grams that occurred earlier in the same text, pooled over texts.
* entropy: unigram entropy of a text's own ids, nats.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence

_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")


def words_of(text: str) -> list[str]:
    """The lower-cased words of a text, in order."""
    return _WORD.findall(text.lower())


def ngrams(words: Sequence[str], n: int) -> list[tuple[str, ...]]:
    """All runs of n words, in order: max(0, len − n + 1) of them."""
    return [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]


def count_repeats(words: Sequence[str], n: int) -> tuple[int, int]:
    """(n-grams of this text that occurred earlier in it, all its n-grams)."""
    every = ngrams(words, n)
    return len(every) - len(set(every)), len(every)


def distinct(texts: Iterable[Sequence[str]], n: int) -> float | None:
    """Different n-grams over all n-grams of `texts` (each a list of words); None where there is none."""
    seen: set[tuple[str, ...]] = set()
    total = 0
    for words in texts:
        every = ngrams(words, n)
        seen.update(every)
        total += len(every)
    return len(seen) / total if total else None


def unigram_entropy(ids: Sequence[int]) -> float | None:
    """−Σ p ln p of the ids' own frequencies, nats; 0 for one kind of id, None for no id."""
    if not ids:
        return None
    total = len(ids)
    return abs(math.fsum(-count / total * math.log(count / total) for count in Counter(ids).values()))


def find_duplicates(texts: Iterable[str]) -> list[bool]:
    """For each text whether the very same text came before it; empty texts are never duplicates."""
    seen: set[str] = set()
    repeated: list[bool] = []
    for text in texts:
        bare = text.strip()
        repeated.append(bool(bare) and bare in seen)
        seen.add(bare)
    return repeated
