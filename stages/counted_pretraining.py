"""Operations and tokens of training an encoder from scratch, batch by batch as the rows were drawn.

Spans are hidden in a row without its padding; what comes of it is padded to the longest of its batch, and that padding
is computed like the rest. Tokens are the rows' own, padding apart.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from elf.cache.errors import Damaged
from elf.pipeline.errors import Failed
from elf.stages.config import Pretrain
from elf.stages.counted import Counted, Lineage, Part, Untold, fact
from elf.stages.lineage import Node
from elf.stages.order import Order
from elf.stages.rows import TokenRows
from elf.stages.span_corruption import Corruption
from elf.stages.workload import pretrained_shape

BACKWARD = 3.0
"""Forward and backward together, in forwards."""


@dataclass(frozen=True, slots=True)
class Batches:
    """Rows that went through, their own tokens, and their operations forward."""

    rows: int
    tokens: int
    flops: float


def count_pretraining(node: Node, lineage: Lineage) -> Counted:
    """Of a pretrain step: every batch forward and back, and the held-out rows. Raises Untold."""
    if node.manifest is None:
        raise Untold("it left the store")
    try:
        section = Pretrain.model_validate(dict(node.manifest.config))
    except ValueError as error:
        raise Untold("its settings are those of another version") from error
    try:
        rows = TokenRows.open(lineage.folder(node, "tokens"))
    except (Damaged, Failed, OSError) as error:
        raise Untold("its tokens cannot be read") from error
    held, vocabulary = fact(node, "heldout_rows"), fact(node, "vocabulary")
    trained = rows.rows - held
    if trained < 1:
        raise Untold("its tokens have fewer rows than it held out")
    order, size = Order(trained, section.seed), section.batch
    steps = (order.batch(step, size) for step in range(section.steps))
    looks = (np.arange(start, min(start + size, rows.rows)) for start in range(trained, rows.rows, size))
    learnt, looked = (_count(each, rows, section, vocabulary) for each in (steps, looks))
    parts = (
        Part("gradient passes", learnt.rows, BACKWARD * learnt.flops, True),
        Part("held-out", looked.rows, looked.flops, True),
    )
    return Counted(learnt.tokens, tuple(part for part in parts if part.rows))


def _count(batches: Iterable[np.ndarray], rows: TokenRows, section: Pretrain, vocabulary: int) -> Batches:
    """Rows of a single token are left out, as training leaves them out."""
    went = tokens = 0
    flops = 0.0
    for batch in batches:
        lengths = rows.lengths(batch)
        lengths = lengths[lengths > 1]
        if lengths.size:
            sides = [sides_of_row(section, int(length)) for length in np.unique(lengths)]
            given, wanted = (max(side) for side in zip(*sides, strict=True))
            went, tokens = went + lengths.size, tokens + int(lengths.sum())
            flops += lengths.size * row_of_pretraining(section, given, wanted, vocabulary)
    return Batches(went, tokens, flops)


def sides_of_row(section: Pretrain, length: int) -> tuple[int, int]:
    """Positions that the encoder is given of a row of ``length`` tokens, and that the decoder is to say."""
    hidden, spans = Corruption(section.noise_density, section.mean_span, tuple(range(length)), 0).spans(
        length
    )
    return length - hidden + spans + 1, hidden + spans + 1


def row_of_pretraining(section: Pretrain, given: int, wanted: int, vocabulary: int) -> float:
    """Forward, of a row of so many positions: encoder, decoder with its looks at the encoder, and head."""
    shape = pretrained_shape(section)
    across = 2.0 * 2 * section.width * shape.inner * (wanted + given) + 4.0 * wanted * given * shape.inner
    decoder = wanted * shape.flops(wanted) + section.layers * across
    return given * shape.flops(given) + decoder + 2.0 * wanted * section.width * vocabulary
