"""Span corruption: what a T5 is trained on. Spans of a row become one sentinel each; the target lists what they held.

    row      A B C D E F G H
    input    A B <0> E F G <1> </s>          target   <0> C D <1> H </s>

How long the spans are and where they lie is drawn from (seed, step, row) alone; spans never touch. Source: Raffel et
al. 2020, 3.1.4 (corrupting spans); their program ends every row with a span, which in short rows leaves little
else to be hidden, so here all places are equally likely.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from elf.pipeline.errors import Failed, Misconfigured

IGNORED = -100
"""Target entries that carry no loss, as transformers has it."""


@dataclass(frozen=True, slots=True)
class Corruption:
    """``density``: share of tokens that is hidden; ``mean_span``: tokens per span; ``sentinels``: ids in the order of
    their use; ``end_id`` closes inputs and targets."""

    density: float
    mean_span: float
    sentinels: tuple[int, ...]
    end_id: int

    def spans(self, length: int) -> tuple[int, int]:
        """Hidden tokens and spans in a row of ``length`` ≥ 2 tokens. Raises Misconfigured if sentinels run out."""
        hidden = min(max(round(length * self.density), 1), length - 1)
        count = min(max(round(hidden / self.mean_span), 1), hidden, length - hidden)
        if count > len(self.sentinels):
            raise Misconfigured(
                f"Rows of {length} tokens have {count} hidden spans (pretrain.noise_density {self.density:g}, "
                f"mean_span {self.mean_span:g}), but the tokenizer has {len(self.sentinels)} sentinels "
                "<extra_id_…>: lower the density, lengthen the spans or shorten tokenize.length."
            )
        return hidden, count

    def apply(self, ids: np.ndarray, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Input and target (int64) of one row of at least 2 tokens, padding left out."""
        hidden, count = self.spans(ids.size)
        between = partition(ids.size - hidden + 2, count + 1, random)
        between[[0, -1]] -= 1  # a row may begin or end with a span
        lengths = np.empty(2 * count + 1, np.int64)
        lengths[::2], lengths[1::2] = between, partition(hidden, count, random)
        pieces = np.split(ids, np.cumsum(lengths)[:-1])
        source, target = [pieces[0]], list[np.ndarray]()
        for sentinel, gone, kept in zip(self.sentinels, pieces[1::2], pieces[2::2], strict=False):
            source += [np.array([sentinel]), kept]
            target += [np.array([sentinel]), gone]
        end = np.array([self.end_id])
        return np.concatenate([*source, end]).astype(np.int64), np.concatenate([*target, end]).astype(
            np.int64
        )


def partition(total: int, parts: int, random: np.random.Generator) -> np.ndarray:
    """``parts`` whole numbers ≥ 1 that add up to ``total``; every such partition is equally likely."""
    cuts = np.sort(random.choice(total - 1, parts - 1, replace=False)) + 1
    return np.diff([0, *cuts.tolist(), total])


def pad(rows: Sequence[np.ndarray], value: int) -> np.ndarray:
    """(B, longest) int64, short rows filled with ``value``."""
    out = np.full((len(rows), max(map(len, rows))), value, np.int64)
    for place, row in enumerate(rows):
        out[place, : len(row)] = row
    return out


def row_random(seed: int, step: int, row: int) -> np.random.Generator:
    """The random numbers of one row in one step. Any integers; negative ones are taken modulo 2⁶⁴."""
    return np.random.default_rng([part & (2**64 - 1) for part in (seed, step, row)])


def find_sentinels(specials: dict[str, int]) -> tuple[int, ...]:
    """Ids of ``<extra_id_0>``, ``<extra_id_1>`` … Raises Failed where the tokenizer has none."""
    found: list[int] = []
    while (name := f"<extra_id_{len(found)}>") in specials:
        found.append(specials[name])
    if not found:
        raise Failed(
            "The tokenizer has no sentinels <extra_id_0>, <extra_id_1> …, which span corruption needs: take a T5 "
            "tokenizer, or let tokenize.subwords train one."
        )
    return tuple(found)
