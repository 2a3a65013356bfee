"""Operations of the frozen encoder over a split, and of training one from scratch."""

from elf.stages.config import Pretrain
from elf.stages.counted import Counted, Lineage, Part, Untold, fact, setting
from elf.stages.lineage import Node
from elf.stages.span_corruption import Corruption
from elf.stages.workload import EncoderShape, pretrained_shape, read_shape


def encoder_shape(encode: Node, lineage: Lineage) -> EncoderShape:
    """Of the encoder of an encode step, up to the layer that is read. Raises Untold where it is not there."""
    shape = read_shape(lineage.folder(encode, "encoder") / "data", setting(encode, "layer"))
    if shape is None:
        raise Untold("the kind of its encoder is not known here")
    return shape


def count_encoding(node: Node, lineage: Lineage) -> Counted:
    """Of an encode step: every row of the split through the encoder, once a view. Raises Untold."""
    tokens = lineage.above(node, "tokens")
    if tokens is None:
        raise Untold("its tokens left the store")
    assert node.manifest is not None
    views = node.manifest.facts.get("views")
    if not isinstance(views, dict) or not views:
        raise Untold("its facts have no views")
    length, source = setting(tokens, "tokenize", "length"), setting(tokens, "tokenize", "max_source")
    rows, shape = fact(node, "rows"), encoder_shape(node, lineage)
    given = [source if name == "condition" else length for name in views]
    flops = sum(rows * each * shape.flops(each) for each in given)
    part = Part("encoder", rows * len(given), flops, True)
    return Counted(rows * sum(given), (part,) if flops else ())


def count_pretraining(node: Node, lineage: Lineage) -> Counted:
    """Of a pretrain step: rows of whole length, with spans hidden, forward and back. Raises Untold."""
    tokens = lineage.above(node, "tokens")
    if tokens is None or node.manifest is None:
        raise Untold("its tokens left the store")
    try:
        section = Pretrain.model_validate(dict(node.manifest.config))
    except ValueError as error:
        raise Untold("its settings are those of another version") from error
    length = setting(tokens, "tokenize", "length")
    row = row_of_pretraining(section, length, fact(node, "vocabulary"))
    rows, held = section.steps * section.batch, fact(node, "heldout_rows")
    packed = setting(tokens, "data", "source") is None
    parts = (
        Part("gradient passes", rows, 3.0 * rows * row, packed),
        Part("held-out", held, held * row, packed),
    )
    return Counted(rows * length, tuple(part for part in parts if part.rows))


def row_of_pretraining(section: Pretrain, length: int, vocabulary: int) -> float:
    """Forward, of a row of ``length`` tokens: encoder, decoder with its looks at the encoder, and head."""
    corruption = Corruption(section.noise_density, section.mean_span, tuple(range(length)), 0)
    hidden, spans = corruption.spans(length)
    given, wanted = length - hidden + spans + 1, hidden + spans + 1
    shape = pretrained_shape(section)
    across = 2.0 * 2 * section.width * shape.inner * (wanted + given) + 4.0 * wanted * given * shape.inner
    decoder = wanted * shape.flops(wanted) + section.layers * across
    return given * shape.flops(given) + decoder + 2.0 * wanted * section.width * vocabulary
