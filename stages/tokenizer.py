"""Stage ``tokenizer``: a T5-style unigram tokenizer trained on the training documents.

Ids as T5's: 0 ``<pad>``, 1 ``</s>``, 2 ``<unk>``, then pieces, then 100 sentinels of which ``<extra_id_0>`` is the
last id. White space is folded to single spaces and words begin with "▁", as T5 has it.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tokenizers import Tokenizer

from elf.cache.files import make_folder, write_atomic
from elf.cache.manifest import JSON
from elf.pipeline.errors import Failed
from elf.pipeline.progress import Bar
from elf.pipeline.stage import StageContext
from elf.stages.documents import (
    OTHER_SPLIT,
    SEE_SKIPPED,
    Corpus,
    Document,
    describe_corpus,
    describe_skipped,
)
from elf.stages.subwords import END, PAD, SENTINELS, UNKNOWN, train_unigram
from elf.stages.tokenization import digest_probes, split_events
from elf.stages.vocabulary import TOKENIZER_FILE, load_tokenizer

if TYPE_CHECKING:
    from elf.stages.experiment import TokenizerStep


def run(section: "TokenizerStep", context: StageContext) -> Mapping[str, JSON]:
    """Fill ``out/data`` with a Hugging Face tokenizer folder; returns documents, pieces and a digest of probes.

    Raises Failed where the documents are unusable or hold no text, Misconfigured for a size that is too small.
    """
    documents = context.inputs["documents"]
    corpus = Corpus(documents.path / "data", section.data, describe_corpus(documents.manifest.config))
    count = 0
    passed: Counter[str] = Counter()

    def texts(bar: Bar) -> Iterator[str]:
        nonlocal count
        for event in split_events(corpus, "train", section.holdout):
            if isinstance(event, Document):
                count += 1
                bar.advance()
                yield from event.sides
            else:
                passed[event.reason] += 1

    with context.progress.bar("read", None, unit="documents") as bar:
        tokenizer = train_unigram(texts(bar), size=section.subwords.size)
    if not count:
        elsewhere = passed.pop(OTHER_SPLIT, 0)
        raise Failed(
            f"{corpus.shown} has no training document, so no tokenizer can be trained on it: "
            f"{describe_skipped(passed)}, {elsewhere:,} held out or left unread. "
            f"{SEE_SKIPPED if passed else 'Bring more text, or raise data.train.share.'}"
        )
    pieces = tokenizer.get_vocab_size(with_added_tokens=False)
    if pieces < section.subwords.size:
        context.progress.note(
            f"the text gave {pieces} pieces, fewer than the {section.subwords.size} asked for"
        )
    folder = make_folder(context.out / "data")
    save_tokenizer(tokenizer, folder)
    loaded = load_tokenizer(folder)
    return {"documents": count, "pieces": pieces, "size": loaded.size, "probe_digest": digest_probes(loaded)}


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write the files that ``transformers`` wants beside each other."""
    write_atomic(folder / TOKENIZER_FILE, tokenizer.to_str(pretty=True))
    marks = {"eos_token": END, "pad_token": PAD, "unk_token": UNKNOWN}
    config = {
        **marks,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "additional_special_tokens": list(reversed(SENTINELS)),
        "clean_up_tokenization_spaces": False,
    }
    write_atomic(folder / "tokenizer_config.json", json.dumps(config, indent=1, sort_keys=True) + "\n")
