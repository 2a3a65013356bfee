"""What counts in Gen-PPL, apart from any model.

Protocol, per text (as in MDLM and ELF): the text is tokenised by the judge's own tokenizer as that tokenizer does
by default, cut to the first `window` tokens, and read once from left to right, nothing put in front.

* first token: no NLL, since nothing precedes it (a one-token text counts nothing);
* end mark: nothing is appended; of end marks that stand in the text the first counts once, later ones never;
* every other token counts once.

Gen-PPL = exp(Σ NLL / Σ counted tokens). The authors' program pads to the longest text of a batch with the end mark
and counts the first of those, so there a text's score depends on its neighbours; here it does not.
Entropy is that of the same token ids, end marks included, nats.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

TOKENS_PER_CALL = {"cpu": 1024, "cuda": 16384}
"""Padded tokens of one call where no number of rows is asked for: beyond this nothing gets faster, and the logits
(tokens × vocabulary × 4 bytes) stay at 200 MB on a CPU."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A text under the judge. `nll` is the sum over `counted` tokens, nats; `entropy` None without any token."""

    nll: float
    counted: int
    tokens: int
    entropy: float | None
    truncated: bool
    end_marks: int


@dataclass(frozen=True, slots=True)
class Tokens:
    """Judge ids of one text, cut to the window, and whether anything was cut off."""

    ids: tuple[int, ...]
    truncated: bool


def counted_tokens(ids: Sequence[int], end_ids: frozenset[int]) -> list[bool]:
    """Per token whether it counts by the rule of end marks; the first token's place is the caller's to skip."""
    ended = False
    counted: list[bool] = []
    for token in ids:
        end = token in end_ids
        counted.append(not end or not ended)
        ended = ended or end
    return counted


def plan_batches(lengths: Sequence[int], *, rows: int | None, tokens: int) -> list[list[int]]:
    """Positions of texts to score together, longest first, so that little is padded.

    At most `rows` texts a batch where given; otherwise as many as fit `tokens` padded tokens. Texts with
    fewer than two tokens need no call and come last, together.
    """
    order = sorted((i for i, length in enumerate(lengths) if length > 1), key=lambda i: (-lengths[i], i))
    batches = list(_filled(order, lengths, rows, tokens))
    silent = [i for i, length in enumerate(lengths) if length <= 1]
    return [*batches, silent] if silent else batches


def _filled(
    order: Sequence[int], lengths: Sequence[int], rows: int | None, tokens: int
) -> Iterator[list[int]]:
    first = 0
    while first < len(order):
        size = rows if rows is not None else max(1, tokens // lengths[order[first]])
        yield list(order[first : first + size])
        first += size
