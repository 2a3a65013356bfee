"""Operations of the frozen encoder over a split."""

from elf.stages.counted import Counted, Lineage, Part, Untold, fact, setting
from elf.stages.lineage import Node
from elf.stages.workload import EncoderShape, read_shape


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
