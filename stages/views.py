"""Which encoder states of a row are kept, and who sees whom while they are made.

    plain                    text: every position of the row, padding too; all see the valid tokens
    condition                pairs: the condition's positions; they see only each other
    target_given_condition   pairs: every position after the condition, padding too; all see the valid tokens
    target                   pairs: the same positions, but nothing of the condition is seen

Padding positions are encoded, not invented: they hold the end mark, see the valid tokens and are seen by none, for
under "eos" padding they carry loss. ``plain`` has rows of one length. The other views are ragged, so that position
0 of ``condition`` is the row's first and position 0 of the targets the first after the condition. A query that sees
no key at all (a row without tokens; padding after an empty target) attends uniformly over all positions.
Every row is encoded at a length that depends on the split alone: L, or ``max_source`` for conditions.
Shapes: B rows, L positions, D width.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from elf.cache.layout import CHUNK_TOKENS, STORAGE, ArrayLayout, DType, RaggedLayout
from elf.pipeline.errors import Failed, Misconfigured
from elf.stages.encoder import Encoder
from elf.stages.model.masks import encoder_mask, is_condition, positions_below
from elf.stages.rows import TokenRows

ViewName: TypeAlias = Literal["plain", "condition", "target_given_condition", "target"]
TEXT: tuple[ViewName, ...] = ("plain",)
PAIRS: tuple[ViewName, ...] = ("condition", "target_given_condition", "target")


@dataclass(frozen=True, slots=True, eq=False)
class Inputs:
    """Rows ready for the encoder: ids (B, L) int64; who sees whom (B, L or 1, L), None if all see all; ``kept``
    (B, L) bool, None for all positions; ``valid`` (B,): how many of a row's kept states, from the first, are of
    tokens and not of padding."""

    ids_BL: Tensor
    mask: Tensor | None
    kept_BL: Tensor | None
    valid_B: np.ndarray


class ViewRows:
    """The rows of one split as one view takes them."""

    def __init__(self, name: ViewName, tokens: TokenRows) -> None:
        self.name: ViewName = name
        self.tokens = tokens
        everything = np.arange(tokens.rows)
        self.condition = tokens.condition_lengths(everything)
        self.lengths = tokens.lengths(everything)
        # One answer for the whole split: whether a mask is given must not depend on which rows share a batch.
        self._full = name == "plain" and bool((self.lengths == tokens.length).all())

    @property
    def length(self) -> int:
        """Positions the encoder is given."""
        source = self.tokens.vocabulary.max_source
        return source if self.name == "condition" and source is not None else self.tokens.length

    def layout(self, width: int, dtype: DType, shard_bytes: int) -> ArrayLayout | RaggedLayout:
        """Where the states will lie: shards of about ``shard_bytes``, at least one row each."""
        token_bytes = width * STORAGE[dtype].dtype.itemsize
        rows, length = self.tokens.rows, self.tokens.length
        if self.name == "plain":
            shard_rows = min(rows, max(1, shard_bytes // (length * token_bytes)))
            return ArrayLayout(rows, length, width, dtype, shard_rows)
        kept = self.condition if self.name == "condition" else length - self.condition
        if not kept.any():
            raise Failed(
                f"No row has a {self.name} to encode: these pairs have one side only. Bring pairs with both, or leave "
                "that view out of encode.views."
            )
        needed = _whole_chunks(max(length, int(kept.sum(dtype=np.int64))))
        wanted = max(_whole_chunks(length), shard_bytes // (CHUNK_TOKENS * token_bytes) * CHUNK_TOKENS)
        return RaggedLayout(kept.astype(np.int32), length, width, dtype, min(needed, wanted))

    def inputs(self, rows: np.ndarray) -> Inputs:
        """What the encoder is given for ``rows`` (B,)."""
        ids_BL = torch.from_numpy(self.tokens.ids(rows)[:, : self.length].astype(np.int64))
        condition_B, length_B = torch.from_numpy(self.condition[rows]), torch.from_numpy(self.lengths[rows])
        if self.name == "plain":
            mask = None if self._full else encoder_mask(torch.zeros_like(length_B), length_B, self.length)
            return Inputs(ids_BL, None if mask is None else mask[:, :1], None, self.valid(rows))
        if self.name == "condition":
            mask = encoder_mask(torch.zeros_like(condition_B), condition_B, self.length)[:, :1]
            return Inputs(ids_BL, mask, positions_below(condition_B, self.length), self.valid(rows))
        drop_B = torch.full(condition_B.shape, self.name == "target")
        mask = encoder_mask(condition_B, length_B, self.length, drop_B=drop_B)
        return Inputs(ids_BL, mask, ~is_condition(condition_B, self.length), self.valid(rows))

    def valid(self, rows: np.ndarray) -> np.ndarray:
        """How many of each row's kept states, from the first, are of tokens and not of padding, (B,)."""
        if self.name == "condition":
            return self.condition[rows]
        return self.lengths[rows] - (0 if self.name == "plain" else self.condition[rows])


def encode_rows(encoder: Encoder, inputs: Inputs) -> Tensor:
    """States of the kept positions in the compute dtype: (B, L, D), or (tokens, D) row after row."""
    states_BLD = encoder.states(inputs.ids_BL, inputs.mask)
    return states_BLD if inputs.kept_BL is None else states_BLD[inputs.kept_BL.to(states_BLD.device)]


def choose_views(wanted: tuple[ViewName, ...] | None, *, pairs: bool) -> tuple[ViewName, ...]:
    """The views to make. Raises Misconfigured for one that such rows do not have."""
    known = PAIRS if pairs else TEXT
    if wanted is None:
        return known
    wrong = [name for name in wanted if name not in known]
    if wrong or not wanted or len(set(wanted)) != len(wanted):
        kind = "pairs" if pairs else "plain text"
        raise Misconfigured(
            f"encode.views is {list(wanted)}; rows of {kind} have {', '.join(known)}, each at most once and at "
            "least one of them."
        )
    return wanted


def _whole_chunks(tokens: int) -> int:
    return -(-tokens // CHUNK_TOKENS) * CHUNK_TOKENS
