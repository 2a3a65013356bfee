"""Stage ``tokenize``: documents to rows of token ids.

First the documents are tokenized in parts, in any number of processes; then one process packs them in order. Only
the second step decides what the rows are, so they are the same bytes however the first was shared out.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from elf.cache.files import make_folder, remove_at_once, remove_tree, write_atomic
from elf.cache.manifest import JSON
from elf.pipeline.errors import Failed
from elf.pipeline.stage import StageContext
from elf.stages.counting import FILES_IN_FACTS, Counts
from elf.stages.documents import (
    OTHER_SPLIT,
    SEE_SKIPPED,
    Corpus,
    Document,
    Skipped,
    chosen,
    describe_corpus,
    describe_skipped,
)
from elf.stages.packing import Packer, PairPacker, RowShards, TextPacker
from elf.stages.parts import PartMaker, Shown, find_duplicates, read_parts
from elf.stages.rows import COUNTS, ROWS, VOCABULARY
from elf.stages.vocabulary import (
    TOKENIZER_FILE,
    TextTokenizer,
    Vocabulary,
    describe_tokenizer,
    full_vocabulary,
    load_tokenizer,
)

if TYPE_CHECKING:
    from elf.stages.experiment import TokenizeStep

TOKENIZER_FILES = (
    TOKENIZER_FILE,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "spiece.model",
    "tokenizer.model",
    "chat_template.jinja",
)
_BYTES_PER_WORKER = 8 * 2**20
_TOLD_UNKNOWN = 0.01
"""Share of unknown pieces above which a note tells of them."""
_PROBES = (
    "Hello world", " two  spaces", "line\nbreak", "tab\there", "{braces} ~ \\ `", "café CAFÉ", "naïve ﬁ ①",
    "2026-01-31 3.14159", "Grüße, Größe", "हिन्दी 中文 👩‍👩‍👧",
)  # fmt: skip


def run(section: "TokenizeStep", context: StageContext) -> Mapping[str, JSON]:
    """Fill ``out`` with ``rows/``, ``tokenizer/``, ``vocabulary.json``, ``counts.json``; returns the counts.

    Inputs: ``documents`` (fetch), ``tokenizer`` (fetch or tokenizer), ``vocabulary`` (tokenize of the training
    split, where ``tokenize.vocabulary`` is ``used``). Raises Failed for unusable records and when no row comes out,
    Misconfigured for an end mark that the tokenizer lacks or that a text may hold.
    """
    settings = section.tokenize
    folder = context.out / "tokenizer"
    copy_tokenizer(context.inputs["tokenizer"].path / "data", folder)
    tokenizer = load_tokenizer(folder, describe_tokenizer(context.inputs["tokenizer"].manifest.config))
    end_id = tokenizer.end_id(settings.end_token)
    documents = context.inputs["documents"]
    corpus = Corpus(documents.path / "data", section.data, describe_corpus(documents.manifest.config))
    if tokenizer.pad_id is None:
        context.progress.note(
            f"the tokenizer {tokenizer.shown} has no pad_token: its end mark {settings.end_token!r} fills rows up, and "
            "what comes after the first one counts as padding"
        )
    for name in corpus.passed_over():
        context.progress.note(f"{corpus.shown}: {name} is not read, its suffix names no format")
    parts = context.out / "parts"
    _make_parts(section, context, corpus, parts, Shown(corpus.shown, tokenizer.shown))
    packer = _packer(section, end_id)
    counts, used = _pack(section, context, parts, packer, tokenizer)
    _note_unknown(counts, corpus, tokenizer, context)
    vocabulary = _vocabulary(section, context, tokenizer, used)
    if section.split != "train":
        counts.outside = _count_outside(vocabulary, used)
    _check(counts, packer, corpus, section)
    facts = counts.facts(packer, find_duplicates(parts, counts.records))
    facts["probe_digest"] = digest_probes(tokenizer)
    vocabulary.write(context.out / VOCABULARY)
    per_file = counts.per_file()
    write_atomic(
        context.out / COUNTS, json.dumps({**facts, "files": per_file}, sort_keys=True, indent=1) + "\n"
    )
    remove_at_once(parts)
    return {**facts, "files": per_file if len(per_file) <= FILES_IN_FACTS else len(per_file)}


def copy_tokenizer(source: Path, target: Path) -> None:
    """Copy the tokenizer's files (and nothing of a model beside them) into the folder ``target``.

    A single fetched file is taken for a ``tokenizer.json``. Raises Failed where there is no tokenizer.
    """
    make_folder(target)
    single = source / "asset.json"
    if single.exists():
        shutil.copyfile(single, target / TOKENIZER_FILE)
        return
    for name in TOKENIZER_FILES:
        if (source / name).exists():
            shutil.copyfile(source / name, target / name)
    if not (target / TOKENIZER_FILE).exists():
        there = ", ".join(sorted(path.name for path in source.iterdir()))
        raise Failed(
            f"{source} holds no {TOKENIZER_FILE}, only {there}. Name a tokenizer in Hugging Face's fast "
            "format (save_pretrained of a fast tokenizer writes it)."
        )


def digest_probes(tokenizer: TextTokenizer) -> str:
    """``sha256:…`` of the ids of ten probe strings: two tokenizers that differ here are not the same."""
    return f"sha256:{hashlib.sha256(json.dumps(tokenizer.probe(_PROBES)).encode()).hexdigest()}"


def split_events(corpus: Corpus, split: str, holdout: float) -> Iterator[Document | Skipped]:
    """The corpus with the documents of the other split, and those left unread, turned into skipped records."""
    share = corpus.source.share
    for event in corpus.documents():
        if isinstance(event, Document) and not chosen(event, split, holdout, share):
            yield Skipped(event.file, event.place, OTHER_SPLIT)
        else:
            yield event


def _make_parts(
    section: "TokenizeStep", context: StageContext, corpus: Corpus, folder: Path, shown: Shown
) -> None:
    settings = section.tokenize
    rows = settings.rows

    def enough(tokens: int, documents: int) -> bool:
        if rows is None:
            return False
        return documents >= rows if section.data.pairs else tokens >= rows * settings.length

    size = sum(path.stat().st_size for _, path, _ in corpus.files())
    workers = context.compute.workers or min(os.cpu_count() or 1, 1 + size // _BYTES_PER_WORKER)
    with context.progress.bar("tokenize", None, unit="documents") as bar:
        maker = PartMaker(folder, context.out / "tokenizer", workers, enough, bar.advance, shown=shown)
        maker.make(split_events(corpus, section.split, section.holdout))


def _packer(section: "TokenizeStep", end_id: int) -> Packer:
    settings = section.tokenize
    if section.data.pairs:
        assert settings.max_source is not None
        return PairPacker(settings.length, end_id, max_source=settings.max_source, rows=settings.rows)
    return TextPacker(settings.length, end_id, pad=settings.remainder == "pad", rows=settings.rows)


def _pack(
    section: "TokenizeStep", context: StageContext, parts: Path, packer: Packer, tokenizer: TextTokenizer
) -> tuple[Counts, np.ndarray]:
    """Write the rows; returns the counts and how often each tokenizer id stands in them, padding apart."""
    remove_tree(context.out / ROWS)
    shards = RowShards(make_folder(context.out / ROWS))
    counts, used = Counts(), np.zeros(tokenizer.size, dtype=np.int64)
    with context.progress.bar("pack", section.tokenize.rows, unit="rows") as bar:

        def write(rows: list) -> None:
            for row in rows:
                shards.add(row)
                np.add.at(used, row.ids[: row.length], 1)
                counts.packed += row.length
            counts.rows += len(rows)
            bar.advance(len(rows))

        for record in read_parts(parts):
            if packer.full:
                break
            if counts.take(record):
                write(packer.add(record.id, record.source, record.target))
        write(packer.finish())
    shards.close()
    return counts, used


def _vocabulary(
    section: "TokenizeStep", context: StageContext, tokenizer: TextTokenizer, used: np.ndarray
) -> Vocabulary:
    whole = full_vocabulary(tokenizer, section.tokenize, pairs=section.data.pairs)
    if section.tokenize.vocabulary == "full":
        return whole
    if section.split == "train":
        marks = {whole.end_id} | ({whole.unknown_id} if whole.unknown_id is not None else set())
        ids = tuple(sorted({*np.flatnonzero(used).tolist(), *marks}))
    else:
        ids = Vocabulary.read(context.inputs["vocabulary"].path / VOCABULARY).ids or ()
    return replace(whole, mode="used", size=len(ids), ids=ids)


def _count_outside(vocabulary: Vocabulary, used: np.ndarray) -> int:
    if vocabulary.ids is None:
        return 0
    return int(used.sum() - used[list(vocabulary.ids)].sum())


def _note_unknown(counts: Counts, corpus: Corpus, tokenizer: TextTokenizer, context: StageContext) -> None:
    unknown = counts.total().unknown_pieces
    if tokenizer.unknown_id is not None and unknown > _TOLD_UNKNOWN * counts.pieces:
        token = tokenizer.backend.id_to_token(tokenizer.unknown_id)
        context.progress.note(
            f"{corpus.shown}: {unknown:,} of {counts.pieces:,} pieces ({unknown / counts.pieces:.0%}) are {token}, "
            f"unknown to the tokenizer {tokenizer.shown}"
        )


def _check(counts: Counts, packer: Packer, corpus: Corpus, section: "TokenizeStep") -> None:
    total = counts.total()
    if not total.documents and total.other_split:
        raise Failed(
            f"{corpus.shown} has no document for the {section.split} split: none of its {total.other_split:,} was "
            f"chosen for it ({describe_skipped(total.skipped)}), and a document is never cut in two. Have plain text "
            "divided (documents: paragraph, or line, in the data section), give the split a file of its own, or "
            "change data.holdout."
        )
    if not counts.rows:
        raise Failed(
            f"{corpus.shown} gave no row for the {section.split} split: {total.documents:,} documents "
            f"({total.empty:,} of them empty) with {total.tokens:,} tokens were read, "
            f"{describe_skipped(total.skipped)}, {total.other_split:,} are of another split, and a row takes "
            f"{section.tokenize.length:,} tokens. {_what_helps(counts, section)}"
        )
    if counts.packed + packer.dropped != total.tokens:
        raise Failed(
            f"Packing lost count: {total.tokens:,} tokens went in, {counts.packed:,} lie in rows and "
            f"{packer.dropped:,} were dropped. This is a fault of the program; please report it."
        )


def _what_helps(counts: Counts, section: "TokenizeStep") -> str:
    """Against no row at all."""
    total = counts.total()
    if total.skipped and not total.documents:
        return SEE_SKIPPED
    if total.tokens or not total.documents:
        return "Bring more text, lower tokenize.length, or set tokenize.remainder to pad."
    if not section.data.pairs:
        return f"Name the column that holds text (`text: {section.data.text}` in the data section), or bring some."
    return (
        f"Pairs without a source (`source: {section.data.source}` in the data section): {counts.empty_sources:,}, "
        f"without a target (`target: {section.data.target}`): {counts.empty_targets:,}. Name the columns that hold "
        "text, or bring pairs that have both."
    )
