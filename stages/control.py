"""Stage ``control``: texts that no model made, in the form of samples, so that the same judge reads them.

* ``real``: rows of held-out text (of the training text where there is none), back from their ids;
* ``replaced``: the same rows with a share of tokens replaced by draws from the training unigram;
* ``unigram``: as many tokens as the real rows have, all drawn from the training unigram.

A row is read as a sample is: from its first end mark on everything is padding. End marks are neither drawn nor
replaced, so the three kinds have the same lengths. Of pairs, the target side is the text.
Draws are functions of (seed, row, purpose) alone: Philox with key (seed, row).
"""

import json
from collections.abc import Mapping

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
_CHOOSE, _WHERE, _WHAT = 0, 1, 2
_SHUFFLE_KEY = _WORD - 1
_ROWS_AT_ONCE = 4096


def run(section: Control, context: StageContext) -> Mapping[str, JSON]:
    """Write ``samples.jsonl`` and ``settings.json``; returns how many texts there are and whence.

    Inputs: ``tokens`` (training split), ``heldout`` (validation split). Raises Failed where there are fewer rows
    than ``section.count``.
    """
    train = TokenRows.open(context.inputs["tokens"].path)
    split = "validation" if "heldout" in context.inputs else "train"
    rows = TokenRows.open(context.inputs["heldout"].path) if split == "validation" else train
    if rows.rows < section.count:
        raise Failed(
            f"The control '{section.kind}' wants {section.count} rows and the {split} split has {rows.rows}; lower "
            "evaluate.controls' `count` or bring more text."
        )
    tokenizer = load_tokenizer(rows.path / "tokenizer")
    unigram = Unigram(train)
    chosen = choose_rows(rows.rows, section.count, section.seed)
    with context.progress.bar(f"control {section.kind}", section.count, unit="texts") as bar:
        texts: list[Text] = []
        for number, row in enumerate(chosen.tolist()):
            texts.append(_text(section, number, row, rows, unigram, tokenizer))
            bar.advance()
    write_texts(context.out / SAMPLES, texts)
    settings: dict[str, JSON] = {
        "control": section.kind,
        "split": split,
        "count": section.count,
        "seed": section.seed,
        "share": section.share if section.kind == "replaced" else None,
        "rows": chosen.tolist(),
    }
    write_atomic(context.out / SETTINGS, json.dumps(settings, sort_keys=True) + "\n")
    return {"texts": len(texts), "split": split, "kind": section.kind}


def choose_rows(rows: int, count: int, seed: int) -> np.ndarray:
    """``count`` different rows of ``rows``, in increasing order."""
    order = np.argsort(_draws(seed, _SHUFFLE_KEY, _CHOOSE, rows), kind="stable")
    return np.sort(order[:count])


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
                f"The training rows in {train.path} hold nothing but end marks; there is no unigram of them."
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


def _text(
    section: Control, number: int, row: int, rows: TokenRows, unigram: Unigram, tokenizer: TextTokenizer
) -> Text:
    index = np.array([row])
    condition = int(rows.condition_lengths(index)[0])
    whole = rows.ids(index)[0]
    real = cut_at_end(whole[condition : int(rows.lengths(index)[0])], rows.vocabulary.end_id)
    if section.kind == "real":
        ids = real
    elif section.kind == "replaced":
        ids = replace_share(real, section.share, unigram, seed=section.seed, row=row)
    else:
        ids = unigram.draw(section.seed, row, real.size)
    pairs = rows.vocabulary.max_source is not None
    return Text(
        id=number,
        seed=section.seed,
        text=tokenizer.decode(ids),
        ids=tuple(map(int, ids)),
        reference=tokenizer.decode(real) if pairs else None,
        source=tokenizer.decode(whole[:condition]) if pairs else None,
    )
