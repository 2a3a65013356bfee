"""How much of a text stands word for word in the training text: share of its word n-grams found there.

The training text is streamed past the n-grams of the texts in question, so memory follows the texts, not the
corpus: word hashes (xxh3, 64 bit) are combined to n-gram hashes (a polynomial modulo 2^64) and looked up in a
sorted array. n-grams never run across two documents.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from elf.stages.textstats import words_of

if TYPE_CHECKING:
    from elf.stages.rows import TokenRows

_BASE = 0x9E3779B97F4A7C15
Hashes = NDArray[np.uint64]


class NgramHasher:
    """Hashes of the word n-grams of texts."""

    def __init__(self, n: int) -> None:
        self.n = n
        self._words: dict[str, int] = {}
        powers = [pow(_BASE, n - 1 - place, 2**64) for place in range(n)]
        self._powers = np.array(powers, dtype=np.uint64)

    def hash(self, words: Sequence[str]) -> Hashes:
        """uint64 (max(0, len − n + 1),): one hash per n-gram, in order."""
        if len(words) < self.n:
            return np.empty(0, np.uint64)
        codes = np.array([self._code(word) for word in words], dtype=np.uint64)
        windows = np.lib.stride_tricks.sliding_window_view(codes, self.n)
        return (windows * self._powers).sum(axis=1, dtype=np.uint64)

    def _code(self, word: str) -> int:
        code = self._words.get(word)
        if code is None:
            code = self._words[word] = xxhash.xxh3_64_intdigest(word.encode())
        return code


class CopySearch:
    """The n-grams of some texts, and which of them have been seen in the training text so far."""

    def __init__(self, texts: Iterable[Sequence[str]], n: int) -> None:
        self._hasher = NgramHasher(n)
        self._texts = [self._hasher.hash(words) for words in texts]
        self._known: Hashes = np.unique(np.concatenate([np.empty(0, np.uint64), *self._texts]))
        self.found: NDArray[np.bool_] = np.zeros(self._known.size, np.bool_)
        """Per known n-gram, in the order of hashes; may be set to go on from an earlier search."""

    def look_through(self, documents: Iterable[str]) -> None:
        """Mark the n-grams that occur in these training documents."""
        if not self._known.size:
            return
        hashes = [self._hasher.hash(words_of(document)) for document in documents]
        corpus = np.concatenate([np.empty(0, np.uint64), *hashes])
        at = np.minimum(np.searchsorted(self._known, corpus), self._known.size - 1)
        self.found[at[self._known[at] == corpus]] = True

    def counts(self) -> list[tuple[int, int]]:
        """Per text: (n-grams found, n-grams)."""
        return [
            (int(self.found[np.searchsorted(self._known, hashes)].sum()) if hashes.size else 0, hashes.size)
            for hashes in self._texts
        ]


def stream_documents(
    rows: "TokenRows", *, end_id: int, chunk: int, start: int = 0, carry: Sequence[int] = ()
) -> Iterator[tuple[int, list[int], list[list[int]]]]:
    """Read tokenised rows as documents: yields (rows read so far, carry, documents as id lists).

    Packed rows are one stream of tokens cut by end marks, so a document that runs over a row's end is joined;
    `carry` is what of it has been read, and with the row count it is all that is needed to go on later. Rows of
    pairs (a condition in front) stand alone and give condition and target separately.
    """
    held = list(carry)
    for first in range(start, rows.rows, chunk):
        indices = np.arange(first, min(first + chunk, rows.rows))
        ids, valid = rows.ids(indices), rows.lengths(indices)
        conditions = rows.condition_lengths(indices)
        documents: list[list[int]] = []
        for row, length, condition in zip(ids, valid, conditions, strict=True):
            if condition:
                documents += _cut(row[:condition], end_id) + _cut(row[condition:length], end_id)
                continue
            *whole, rest = _cut(row[:length], end_id)
            if whole:
                documents.append(held + whole[0])
                documents += whole[1:]
                held = rest
            else:
                held += rest
        last = int(indices[-1]) + 1
        if last == rows.rows:
            documents.append(held)
            held = []
        yield last, held, [document for document in documents if document]


def _cut(ids: NDArray[Any], end_id: int) -> list[list[int]]:
    """Pieces between end marks; always at least one, the last being what follows the last mark."""
    ends = np.flatnonzero(ids == end_id)
    starts = np.concatenate([[0], ends + 1])
    return [ids[a:b].tolist() for a, b in zip(starts, [*ends, len(ids)], strict=True)]
