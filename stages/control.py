"""Stage ``control``: texts that no model made, in the form of samples, so that the same judge reads them.

* ``real``: rows of held-out text (of the training text where there is none), back from their ids;
* ``replaced``: the same rows with a share of tokens replaced by draws from the training unigram;
* ``unigram``: as many tokens as the real rows have, all drawn from the training unigram;
* of pairs, whose text is the target: ``copy``, the source as the model sees it; ``shuffled``, the target of another
  of the rows; ``lead``, the first words of the source.

A row is read as a sample is: from its first end mark on everything is padding. End marks are neither drawn nor
replaced, so that the first three kinds have the same lengths. Every text of pairs has its source and its reference.
Draws are functions of (seed, row, purpose) alone: Philox with key (seed, row).
"""

import json
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from elf.cache.files import write_atomic
from elf.cache.manifest import JSON
from elf.pipeline.errors import Failed
from elf.pipeline.stage import StageContext
from elf.stages.config import Control
from elf.stages.rows import TokenRows
from elf.stages.texts import SAMPLES, SETTINGS, Text, write_texts
from elf.stages.vocabulary import TextTokenizer, cut_at_end, load_tokenizer

_WORD = 2**64
_CHOOSE, _WHERE, _WHAT, _PAIR = 0, 1, 2, 3
_SHUFFLE_KEY = _WORD - 1
_ROWS_AT_ONCE = 4096


def run(section: Control, context: StageContext) -> Mapping[str, JSON]:
    """Write ``samples.jsonl`` and ``settings.json``; returns how many texts there are and whence.

    Inputs: ``tokens`` (training split), ``heldout`` (the section's split). Raises Failed where there are fewer rows
    than ``section.count``.
    """
    train = TokenRows.open(context.inputs["tokens"].path)
    split = section.split if "heldout" in context.inputs else "train"
    rows = train if split == "train" else TokenRows.open(context.inputs["heldout"].path)
    count = rows.rows if section.count is None else section.count
    if rows.rows < count:
        raise Failed(
            f"The control '{section.kind}' wants {count} rows and the {split} split has {rows.rows}; lower "
            "evaluate.controls' `count` or bring more text."
        )
    chosen = choose_rows(rows.rows, count, section.seed)
    other = dict(zip(chosen.tolist(), others(chosen, section.seed).tolist(), strict=True))
    maker = _Maker(section, rows, Unigram(train), other, load_tokenizer(rows.path / "tokenizer"))
    with context.progress.bar(f"control {section.kind}", count, unit="texts") as bar:
        texts: list[Text] = []
        for number, row in enumerate(chosen.tolist()):
            texts.append(maker.text(number, row))
            bar.advance()
    write_texts(context.out / SAMPLES, texts)
    settings: dict[str, JSON] = {
        "control": section.kind,
        "split": split,
        "count": count,
        "seed": section.seed,
        "share": section.share if section.kind == "replaced" else None,
        "rows": chosen.tolist(),
        **({"words": section.words} if section.kind == "lead" else {}),
    }
    write_atomic(context.out / SETTINGS, json.dumps(settings, sort_keys=True) + "\n")
    return {"texts": len(texts), "split": split, "kind": section.kind}


def choose_rows(rows: int, count: int, seed: int) -> np.ndarray:
    """``count`` different rows of ``rows``, in increasing order."""
    order = np.argsort(_draws(seed, _SHUFFLE_KEY, _CHOOSE, rows), kind="stable")
    return np.sort(order[:count])


def others(chosen: np.ndarray, seed: int) -> np.ndarray:
    """For each of ``chosen`` (n,) another one of them, no two the same; itself only where there is but one."""
    order = np.argsort(_draws(seed, _SHUFFLE_KEY, _PAIR, len(chosen)), kind="stable")
    found = np.empty_like(chosen)
    found[order] = chosen[np.roll(order, -1)]
    return found


class Unigram:
    """How often each token stands in the training rows, padding, conditions and end marks apart."""

    def __init__(self, train: TokenRows) -> None:
        counts = np.zeros(train.vocabulary.tokenizer_size, dtype=np.int64)
        for start in range(0, train.rows, _ROWS_AT_ONCE):
            indices = np.arange(start, min(start + _ROWS_AT_ONCE, train.rows))
            places = np.arange(train.length)
            kept = (places >= train.condition_lengths(indices)[:, None]) & (
                places < train.lengths(indices)[:, None]
            )
            counts += np.bincount(train.ids(indices)[kept], minlength=counts.size)
        counts[train.vocabulary.end_id] = 0
        self.ends = np.cumsum(counts)
        if not self.ends[-1]:
            raise Failed(
                f"The training rows in {train.path} hold nothing but end marks, of which there is no unigram. Bring "
                "text with words, or leave that control out of evaluate.controls."
            )

    def draw(self, seed: int, row: int, count: int) -> np.ndarray:
        """``count`` tokenizer ids (int32), independent of each other."""
        at = _draws(seed, row, _WHAT, count) % np.uint64(self.ends[-1])
        return np.searchsorted(self.ends, at.astype(np.int64), side="right").astype(np.int32)


def replace_share(ids: np.ndarray, share: float, unigram: Unigram, *, seed: int, row: int) -> np.ndarray:
    """``ids`` with each token, by chance ``share``, replaced by a draw (which may be the same token)."""
    hit = _draws(seed, row, _WHERE, ids.size) / _WORD < share
    return np.where(hit, unigram.draw(seed, row, ids.size), ids)


def _draws(seed: int, row: int, purpose: int, count: int) -> np.ndarray:
    """``count`` uniform 64-bit numbers that depend on the arguments only."""
    key = np.array([seed % _WORD, row], dtype=np.uint64)
    counter = np.array([0, 0, 0, purpose], dtype=np.uint64)
    return np.random.Philox(key=key, counter=counter).random_raw(count)


@dataclass(frozen=True, slots=True)
class _Maker:
    """Makes the texts of one control; ``other`` names, for each chosen row, another of them."""

    section: Control
    rows: TokenRows
    unigram: Unigram
    other: Mapping[int, int]
    tokenizer: TextTokenizer

    def text(self, number: int, row: int) -> Text:
        source, real = self.sides(row)
        ids, pairs = self.ids(row, source, real), self.rows.vocabulary.max_source is not None
        return Text(
            id=number,
            seed=self.section.seed,
            text=self.tokenizer.decode(ids),
            ids=tuple(map(int, ids)),
            reference=self.tokenizer.decode(real) if pairs else None,
            source=self.tokenizer.decode(source) if pairs else None,
        )

    def ids(self, row: int, source: np.ndarray, real: np.ndarray) -> np.ndarray:
        section = self.section
        match section.kind:
            case "real":
                return real
            case "replaced":
                return replace_share(real, section.share, self.unigram, seed=section.seed, row=row)
            case "unigram":
                return self.unigram.draw(section.seed, row, real.size)
            case "copy":
                return source
            case "shuffled":
                return self.sides(self.other[row])[1]
            case "lead":
                return self.lead(source)

    def sides(self, row: int) -> tuple[np.ndarray, np.ndarray]:
        """Ids of a row's condition (none where it is no pair) and of its text up to the first end mark."""
        index = np.array([row])
        condition, whole = int(self.rows.condition_lengths(index)[0]), self.rows.ids(index)[0]
        text = whole[condition : int(self.rows.lengths(index)[0])]
        return whole[:condition], cut_at_end(text, self.rows.vocabulary.end_id)

    def lead(self, source: np.ndarray) -> np.ndarray:
        """The longest beginning of at most so many words."""

        def too_many(count: int) -> bool:
            return len(self.tokenizer.decode(source[:count]).split()) > self.section.words

        return source[: bisect_left(range(1, source.size + 1), True, key=too_many)]
