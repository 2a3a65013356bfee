from pathlib import Path
from typing import Any

import pytest
from corpora import ENGLISH, digest_folder, make_corpus, make_source, numbered
from judging import make_context

from elf.pipeline.errors import Failed
from elf.stages import tokenizer
from elf.stages.config import Source, Subwords
from elf.stages.documents import Document, chosen
from elf.stages.experiment import TokenizerStep
from elf.stages.vocabulary import load_tokenizer


def run(
    tmp_path: Path,
    records: list[Any],
    name: str = "out",
    *,
    holdout: float = 0.0,
    source: Source | None = None,
    size: int = 160,
) -> dict[str, Any]:
    documents = make_corpus(tmp_path / f"documents-{name}", {"a.jsonl": records})
    section = TokenizerStep(data=source or make_source(), subwords=Subwords(size=size), holdout=holdout)
    return dict(tokenizer.run(section, make_context(tmp_path / name, {"documents": documents})))


def test_the_folder_is_what_transformers_reads(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    facts = run(tmp_path, numbered(ENGLISH * 3))
    assert (facts["documents"], facts["pieces"], facts["size"]) == (12, 160, 260)
    ours = load_tokenizer(tmp_path / "out" / "data")
    theirs = AutoTokenizer.from_pretrained(tmp_path / "out" / "data", local_files_only=True)
    assert (theirs.pad_token_id, theirs.eos_token_id, theirs.unk_token_id, len(theirs)) == (0, 1, 2, 260)
    for text in (*ENGLISH, "two  spaces\nand {braces}"):
        assert theirs(text).input_ids == [*ours.encode([text])[0].tolist(), 1]


def test_held_out_documents_are_not_looked_at(tmp_path: Path) -> None:
    records = numbered([f"{text} {index}" for index, text in enumerate(ENGLISH * 10)])
    kept = [
        record for record in records if chosen(Document("", 0, "", True, (record["text"],)), "train", 0.4)
    ]
    assert 0 < len(kept) < len(records)
    facts = run(tmp_path, records, "split", holdout=0.4)
    run(tmp_path, kept, "kept")
    assert facts["documents"] == len(kept)
    assert digest_folder(tmp_path / "split") == digest_folder(tmp_path / "kept")


def test_both_sides_of_pairs_are_read(tmp_path: Path) -> None:
    records = [{"source": ENGLISH[2], "target": ENGLISH[3]}] * 3
    run(tmp_path, records, source=make_source(source="source", target="target"), size=120)
    loaded = load_tokenizer(tmp_path / "out" / "data")
    assert (loaded.encode(["Fluss sentence"])[0] != 2).all()


def test_faults_of_the_corpus_are_those_of_tokenize(tmp_path: Path) -> None:
    with pytest.raises(Failed, match=r"a\.jsonl, line 2: the key 'text' is null"):
        run(tmp_path, [{"text": ENGLISH[0]}, {"text": None}])
    why = (
        r"no training document.*2 records skipped \(the key 'text' is null: 2\), 0 held out.*`on_bad: error`"
    )
    with pytest.raises(Failed, match=why):
        run(tmp_path, [{"text": None}] * 2, "skipping", source=make_source(on_bad="skip"))
    with pytest.raises(Failed, match=r"0 records skipped, 2 held out.*Bring more text"):
        run(tmp_path, numbered(ENGLISH[:2]), "held out", holdout=0.9999)
