"""Tokenizers that drop what they cannot spell, made to say so.

A BPE model without an unknown token passes over a character that is none of its pieces, as if it were not there. Here
it is given a token for that, beyond its own ids, which no text keeps: whoever encodes refuses it.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from elf.pipeline.errors import Failed

_UNSPELT = "\ue000unspelt\ue000"


def drops_silently(model: Mapping[str, Any]) -> bool:
    """Whether a ``model`` of a ``tokenizer.json`` is one of BPE that has no unknown token."""
    return "merges" in model and not model.get("unk_token")


def make_outspoken(plain: Mapping[str, Any], number: int) -> Tokenizer:
    """The tokenizer of a whole ``tokenizer.json`` that gives the id ``number`` for each character it cannot spell."""
    model = dict(plain["model"])
    model |= {"vocab": {**model["vocab"], _UNSPELT: number}, "unk_token": _UNSPELT, "fuse_unk": False}
    return Tokenizer.from_str(json.dumps({**plain, "model": model}))


def refuse_unspelt(
    backend: Tokenizer, number: int, texts: Sequence[str], found: Sequence[np.ndarray], shown: str
) -> None:
    """Raises Failed for the first of ``texts`` in whose ids, ``found``, that ``number`` stands; ``shown`` names the
    tokenizer."""
    for text, ids in zip(texts, found, strict=True):
        count = int(np.count_nonzero(ids == number))
        if not count:
            continue
        encoding = backend.encode(text, add_special_tokens=False)
        start, end = encoding.offsets[encoding.ids.index(number)]
        raise Failed(
            f"The tokenizer {shown} cannot read a text: it has no token for {text[start:end]!r} at character {start}, "
            f"and would drop that and all else that it cannot spell, {count:,} characters of this text. Name a token "
            "of its model.vocab for what it does not know (model.unk_token in its tokenizer.json), or choose another "
            "tokenizer."
        )
