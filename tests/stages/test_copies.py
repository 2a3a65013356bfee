from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elf.stages.copies import CopySearch, stream_documents
from elf.stages.textstats import ngrams, words_of

END = 1


@dataclass
class ListedRows:
    """Rows in memory, read like a tokens artifact."""

    table: list[list[int]]
    conditions: list[int] | None = None

    @property
    def rows(self) -> int:
        return len(self.table)

    def ids(self, indices: np.ndarray) -> np.ndarray:
        longest = max(map(len, self.table))
        return np.array([self.table[i] + [END] * (longest - len(self.table[i])) for i in indices], np.int32)

    def lengths(self, indices: np.ndarray) -> np.ndarray:
        return np.array([len(self.table[i]) for i in indices])

    def condition_lengths(self, indices: np.ndarray) -> np.ndarray:
        return np.array([(self.conditions or [0] * self.rows)[i] for i in indices])


def documents(rows: Any, chunk: int, start: int = 0, carry: tuple[int, ...] = ()) -> list[list[int]]:
    read = stream_documents(rows, end_id=END, chunk=chunk, start=start, carry=carry)
    return [document for _, _, found in read for document in found]


def test_copies_are_shares_of_word_ngrams():
    search = CopySearch(
        [words_of("The cat sat on the mat"), words_of("on the"), words_of("a dog ran off")], 3
    )
    search.look_through(["Look, the CAT sat. On it went", "the mat"])
    assert search.counts() == [(2, 4), (0, 0), (0, 2)]
    search.look_through(["sat on the mat"])
    assert search.counts() == [(4, 4), (0, 0), (0, 2)]


def test_ngrams_do_not_run_across_documents():
    search = CopySearch([words_of("a b c d")], 4)
    search.look_through(["a b", "c d"])
    assert search.counts() == [(0, 1)]


@given(
    st.lists(st.lists(st.sampled_from("abcd"), max_size=12), min_size=1, max_size=5),
    st.lists(st.lists(st.sampled_from("abcd"), max_size=12), max_size=5),
    st.integers(1, 4),
)
def test_hashing_counts_as_plain_sets_do(texts: list[list[str]], corpus: list[list[str]], n: int):
    search = CopySearch(texts, n)
    search.look_through([" ".join(words) for words in corpus])
    known = {gram for words in corpus for gram in ngrams(words, n)}
    assert search.counts() == [
        (sum(gram in known for gram in ngrams(words, n)), len(ngrams(words, n))) for words in texts
    ]


@pytest.mark.parametrize("chunk", [1, 2, 3, 100])
def test_documents_run_over_rows(chunk: int):
    rows = ListedRows([[5, 6, END, 7], [8, 9, 2, 3], [END, END, 4, END], [2, 2, 2, END], [3, 4]])
    assert documents(rows, chunk) == [[5, 6], [7, 8, 9, 2, 3], [4], [2, 2, 2], [3, 4]]


def test_pairs_stand_alone():
    rows = ListedRows([[5, 6, 7, 8], [9, 2, 3, END, 4]], conditions=[2, 1])
    assert documents(rows, 10) == [[5, 6], [7, 8], [9], [2, 3], [4]]


@given(
    st.lists(st.lists(st.integers(1, 3), min_size=3, max_size=3), min_size=1, max_size=8), st.integers(1, 4)
)
def test_a_stopped_stream_goes_on(table: list[list[int]], chunk: int):
    rows: Any = ListedRows(table)
    whole = documents(rows, chunk)
    first = stream_documents(rows, end_id=END, chunk=chunk)
    read, carry, found = next(first)
    assert found + documents(rows, chunk, read, tuple(carry)) == whole
