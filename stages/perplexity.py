"""A baseline's held-out perplexity in words: whether it is exact or a bound, over what, and in whose tokens.

That of a masked model comes of one draw of masks for each row: an estimate of a bound, which chance may put below it.
"""

from collections.abc import Iterator, Sequence

from elf.cache.manifest import Manifest, short
from elf.pipeline.wording import count_of
from elf.stages.lineage import Node
from elf.stages.vocabulary import describe_tokenizer

LABELS = {
    "perplexity": "held-out perplexity",
    "perplexity_bound": "held-out perplexity: an estimate, by random masks, of a bound above it",
}


def perplexity_figures(train: Manifest, nodes: Sequence[Node]) -> Iterator[tuple[str, str]]:
    """Label and text of the number, and of what it was counted over; nothing where there is none."""
    heldout = train.facts.get("heldout")
    found = heldout if isinstance(heldout, dict) else {}
    for name, label in LABELS.items():
        if isinstance(value := found.get(f"heldout_{name}"), int | float):
            yield label, f"{value:,.1f}"
            yield "counted over", ", ".join(_over(train, {node.key: node for node in nodes}))


def _over(train: Manifest, nodes: dict[str, Node]) -> Iterator[str]:
    tokens = _manifest(nodes, train, "heldout_tokens")
    asked = train.config.get("heldout")
    if tokens is not None and isinstance(asked, dict):
        known = [each for each in (asked.get("rows"), tokens.facts.get("rows")) if isinstance(each, int)]
        if known:
            yield f"{count_of(min(known), 'held-out row')}"
    tokenizer = _manifest(nodes, tokens, "tokenizer")
    yield f"in tokens of {_name(tokenizer)}" if tokenizer is not None else "in this run's own tokens"


def _manifest(nodes: dict[str, Node], of: Manifest | None, role: str) -> Manifest | None:
    node = nodes.get(str(of.inputs.get(role))) if of is not None else None
    return node.manifest if node is not None else None


def _name(tokenizer: Manifest) -> str:
    """``google-t5/t5-small``, or where a local one lay; of one that was trained here its key."""
    if "source" not in tokenizer.config:
        return f"a tokenizer trained here ({short(tokenizer.fingerprint)})"
    return describe_tokenizer(tokenizer.config).removeprefix("hub:").partition("@")[0]
