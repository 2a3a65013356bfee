"""A tokens artifact in miniature: a word-level tokenizer and packed rows of a few documents."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers

from elf.stages.packing import PairPacker, RowShards, TextPacker
from elf.stages.vocabulary import Vocabulary, load_tokenizer

SPECIALS = ("<pad>", "</s>", "<unk>")
END = 1


def make_tokens(
    folder: Path,
    documents: Sequence[str] | Sequence[tuple[str, str]],
    *,
    words: Sequence[str],
    length: int = 16,
    max_source: int | None = None,
) -> Path:
    """The artifact of plain `documents`, or of (source, target) pairs where `max_source` is given."""
    (folder / "tokenizer").mkdir(parents=True)
    (folder / "rows").mkdir()
    pieces = {piece: i for i, piece in enumerate((*SPECIALS, *words))}
    plain = Tokenizer(models.WordLevel(pieces, unk_token="<unk>"))
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    plain.add_special_tokens(list(SPECIALS))
    plain.save(str(folder / "tokenizer" / "tokenizer.json"))
    tokenizer = load_tokenizer(folder / "tokenizer")
    shards = RowShards(folder / "rows")
    packer = (
        TextPacker(length, END, pad=True, rows=None)
        if max_source is None
        else PairPacker(length, END, max_source=max_source, rows=None)
    )
    for number, document in enumerate(documents):
        source, target = ("", document) if isinstance(document, str) else document
        ids = (
            tokenizer.encode([source, target])
            if source
            else [np.array([], np.int32), *tokenizer.encode([target])]
        )
        for row in packer.add(str(number), ids[0], ids[1]):
            shards.add(row)
    for row in packer.finish():
        shards.add(row)
    shards.close()
    Vocabulary(
        mode="full", size=len(pieces), tokenizer_size=len(pieces), ids=None, unknown_id=2, end_id=END, pad_id=0,
        end_token="</s>", length=length, max_source=max_source,
    ).write(folder / "vocabulary.json")  # fmt: skip
    (folder / "counts.json").write_text(json.dumps({"rows": shards.rows}))
    return folder
