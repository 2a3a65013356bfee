import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from corpora import digest_folder, make_corpus, make_source, make_tokenizer, numbered, run_tokenize
from pydantic import ValidationError

from elf.cache.store import Artifact
from elf.pipeline.errors import Failed, Misconfigured
from elf.stages.rows import TokenRows
from elf.stages.vocabulary import Vocabulary, decode_texts, load_tokenizer, round_trip

CHILD = Path(__file__).parent.parent / "support" / "tokenize_child.py"
PAIRS = make_source(source="source", target="target")
LINES = [
    "def f(x) {\n",
    "\treturn {'a': [x, ~x]};\n",
    "  two  spaces   three\n",
    "é vs é ﬁ ①\u200b",
    "नमस्ते 👩‍👩‍👧 नमस्ते",
]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return make_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def build(
    tmp_path: Path, tokenizer: Artifact, files: dict[str, Any], name: str = "out", **settings: Any
) -> dict[str, Any]:
    documents = make_corpus(tmp_path / f"documents-{name}", files)
    return run_tokenize(tmp_path / name, {"documents": documents, "tokenizer": tokenizer}, **settings)


def decode(path: Path) -> list[str]:
    rows = TokenRows.open(path)
    ids = rows.ids(np.arange(rows.rows))
    stream = np.concatenate(
        [row[:length] for row, length in zip(ids, rows.lengths(np.arange(rows.rows)), strict=True)]
    )
    pieces = np.split(stream, np.flatnonzero(stream == rows.vocabulary.end_id) + 1)
    return decode_texts(load_tokenizer(path / "tokenizer"), pieces, rows.vocabulary.end_id)


def test_every_document_comes_back_once_behind_a_long_one(tmp_path: Path, tokenizer: Artifact) -> None:
    texts = ["the " * 500, "a zebra follow the document", "the walrus is the last one"]
    facts = build(tmp_path, tokenizer, {"a.jsonl": numbered(texts)}, length=64, remainder="pad")
    found = decode(tmp_path / "out")
    assert found == [*(text.strip() for text in texts), ""]
    assert facts["tokens"] == facts["packed"]
    assert facts["dropped_tokens"] == 0
    assert facts["cut"] == {"count": 0, "ids": []}
    rows = TokenRows.open(tmp_path / "out")
    assert rows.documents(0) == ("d0",)
    assert rows.documents(rows.rows - 1)[-1] == "d2"


def test_dropped_tokens_are_counted_and_the_cut_document_named(tmp_path: Path, tokenizer: Artifact) -> None:
    facts = build(tmp_path, tokenizer, {"a.jsonl": numbered(["the " * 40, "the " * 40])}, length=64)
    assert (facts["rows"], facts["tokens"], facts["packed"], facts["dropped_tokens"]) == (1, 82, 64, 18)
    assert facts["cut"] == {"count": 1, "ids": ["d1"]}


def test_pairs_are_cut_side_by_side_and_counted(tmp_path: Path, tokenizer: Artifact) -> None:
    records = [
        {"id": "long source", "source": "the " * 50, "target": "yes"},
        {"id": "long target", "source": "the", "target": "the " * 50},
        {"id": "exact", "source": "the " * 16, "target": "the " * 7},
        {"id": "over by the end mark", "source": "the " * 16, "target": "the " * 8},
        {"id": "no target", "source": "the", "target": "  "},
    ]
    facts = build(tmp_path, tokenizer, {"a.jsonl": records}, source=PAIRS, length=24, max_source=16)
    rows = TokenRows.open(tmp_path / "out")
    everything = np.arange(rows.rows)
    assert rows.rows == 4
    assert rows.condition_lengths(everything).tolist() == [16, 1, 16, 16]
    assert facts["cut"] == {"count": 3, "ids": ["long source", "long target", "over by the end mark"]}
    assert (facts["cut_sources"], facts["cut_targets"]) == (1, 2)
    assert facts["empty"] == {"count": 1, "ids": ["no target"]}
    assert facts["tokens"] == facts["packed"] + facts["dropped_tokens"]
    for row, start, length in zip(
        rows.ids(everything), rows.condition_lengths(everything), rows.lengths(everything), strict=True
    ):
        assert (row[:start] != 1).all()
        assert row[length - 1] == 1
        assert (row[start : length - 1] != 1).all()
        assert (row[length:] == 1).all()
    assert rows.vocabulary.max_source == 16
    with pytest.raises(ValidationError, match="leaves no room"):
        build(tmp_path, tokenizer, {"a.jsonl": records}, "tight", source=PAIRS, length=17, max_source=16)


def test_bytes_do_not_depend_on_workers_or_chunks(
    tmp_path: Path, tokenizer: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    from elf.stages import tokenization
    from elf.stages.parts import PartMaker

    lengths = [1, 30, 31, 32, 33, 62, 63, 64, 65, 0, 95, 96]
    files = {
        "b.jsonl": [{"id": f"b{n}", "text": "the " * n} for n in lengths],
        "a.jsonl": [
            {"id": "x", "text": " \n"},
            {"id": "x", "text": "\u200b"},
            {"id": 3, "text": "a </s> the"},
            {"text": 1},
        ],
    }
    inputs = {"documents": make_corpus(tmp_path / "documents", files), "tokenizer": tokenizer}
    digests: set[str] = set()
    facts: dict[str, Any] = {}
    for workers, records in [(1, 1000), (1, 1), (1, 3), (2, 1), (7, 3)]:

        def maker(*arguments: Any, records: int = records, **more: Any) -> PartMaker:
            return PartMaker(*arguments, records=records, **more)

        monkeypatch.setattr(tokenization, "PartMaker", maker)
        for remainder, rows in (
            [("drop", None), ("pad", None), ("drop", 3)] if workers == 1 else [("pad", None)]
        ):
            out = tmp_path / f"{workers}-{records}-{remainder}-{rows}"
            facts = run_tokenize(
                out,
                inputs,
                workers=workers,
                source=make_source(on_bad="skip"),
                length=32,
                remainder=remainder,
                rows=rows,
            )
            digests.add(f"{remainder} {rows} {digest_folder(out)} {json.dumps(facts, sort_keys=True)}")
            assert not (out / "parts").exists()
    assert len(digests) == 3
    assert facts["duplicate_ids"] == {"count": 1, "ids": ["x"]}
    assert facts["skipped"] == {"the key 'text' is a number": 1}


@pytest.mark.parametrize("texts", [["", "", " "], ["the"]], ids=["all empty", "smaller than a row"])
def test_no_row_is_an_error_that_counts(tmp_path: Path, tokenizer: Artifact, texts: list[str]) -> None:
    with pytest.raises(Failed) as error:
        build(tmp_path, tokenizer, {"a.jsonl": numbered(texts)}, length=32)
    empty = sum(not text.strip() for text in texts)
    tokens = 2 * (len(texts) - empty)
    assert f"{len(texts)} documents ({empty} of them empty) with {tokens} tokens" in str(error.value)
    assert "/somewhere/" in str(error.value)


@pytest.mark.parametrize(
    ("records", "source", "said"),
    [
        (
            [{"body": "the"}] * 3 + [{"text": 1}],
            make_source(on_bad="skip"),
            [
                "4 records skipped (the key 'text' is missing: 3, the key 'text' is a number: 1)",
                "`on_bad: error`",
            ],
        ),
        (
            [{"text": " "}] * 4,
            make_source(),
            ["(4 of them empty)", "Name the column that holds text (`text: text`"],
        ),
        (
            [{"source": "", "target": "the"}] * 4 + [{"source": "", "target": ""}],
            PAIRS,
            ["(`source: source` in the data section): 5,", "(`target: target`): 1.", "Name the columns"],
        ),
    ],
    ids=["all skipped", "all empty", "no sources"],
)
def test_why_there_is_no_row_is_said_with_what_helps(
    tmp_path: Path, tokenizer: Artifact, records: list[Any], source: Any, said: list[str]
) -> None:
    with pytest.raises(Failed) as error:
        build(tmp_path, tokenizer, {"a.jsonl": records}, source=source, length=32, max_source=16)
    assert all(words in str(error.value) for words in said), error.value
    assert "Bring more text" not in str(error.value)


@pytest.mark.parametrize(("texts", "noted"), [(["the river ☃"] * 9, True), (["the river"] * 9, False)])
def test_many_unknown_pieces_are_noted(
    tmp_path: Path, tokenizer: Artifact, capsys: pytest.CaptureFixture[str], texts: list[str], noted: bool
) -> None:
    facts = build(tmp_path, tokenizer, {"a.jsonl": numbered(texts)}, length=8)
    pieces = facts["tokens"] - facts["documents"]
    line = f"9 of {pieces} pieces ({9 / pieces:.0%}) are <unk>, unknown to the tokenizer trained here"
    assert (line in capsys.readouterr().err) == noted


def test_what_fills_rows_up_is_said_where_the_tokenizer_names_nothing(
    tmp_path: Path, tokenizer: Artifact, capsys: pytest.CaptureFixture[str]
) -> None:
    said = "has no pad_token: its end mark '</s>' fills rows up"
    files = {"a.jsonl": numbered(["the river"] * 9)}
    build(tmp_path, tokenizer, files, length=8)
    assert said not in capsys.readouterr().err
    plain = (tokenizer.path / "data" / "tokenizer.json").read_text()
    bare = make_corpus(tmp_path / "bare", {"tokenizer.json": plain})
    build(tmp_path, bare, files, "padded", length=8)
    assert f"the tokenizer /somewhere/bare {said}" in capsys.readouterr().err
    assert TokenRows.open(tmp_path / "padded").vocabulary.pad_id == 1


@pytest.mark.parametrize("workers", [1, 2])
def test_a_document_that_the_tokenizer_cannot_read_is_named(tmp_path: Path, workers: int) -> None:
    model = {"type": "WordLevel", "unk_token": "[UNK]", "vocab": {"the": 0, "</s>": 1}}
    end = {"id": 1, "content": "</s>", "special": True, "normalized": False}
    end |= dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
    splitting = {"type": "WhitespaceSplit"}
    plain = json.dumps({"model": model, "added_tokens": [end], "pre_tokenizer": splitting})
    closed = make_corpus(tmp_path / "closed", {"tokenizer.json": plain})
    records = numbered(["the the", "the  the", "the zebra"])
    documents = make_corpus(tmp_path / "documents", {"a.jsonl": records})
    inputs = {"documents": documents, "tokenizer": closed}
    where = r"/somewhere/documents, file a\.jsonl, line or row 3: The tokenizer /somewhere/closed cannot read"
    with pytest.raises(Failed, match=where):
        run_tokenize(tmp_path / "out", inputs, workers=workers, length=2)
    known = {**inputs, "documents": make_corpus(tmp_path / "known", {"a.jsonl": records[:2]})}
    assert run_tokenize(tmp_path / "known-out", known, workers=workers, length=2)["documents"] == 2


def test_what_the_tokenizer_loses_is_counted_per_file(tmp_path: Path, tokenizer: Artifact) -> None:
    files = {
        "plain.txt": "the market by the river",
        "odd.txt": "".join(LINES),
        "marks.txt": "the </s> market <pad>",
    }
    facts = build(tmp_path, tokenizer, files, length=8, remainder="pad")
    counts = json.loads((tmp_path / "out" / "counts.json").read_text())
    assert counts["files"] == facts["files"]
    plain, odd, marks = (facts["files"][name] for name in ("plain.txt", "odd.txt", "marks.txt"))
    assert (plain["unknown_pieces"], plain["folded_whitespace"], plain["special_strings"]) == (0, 0, 0)
    assert odd["unknown_pieces"] > 5
    assert odd["folded_whitespace"] == 5
    assert marks["special_strings"] == 2
    assert facts["unknown_pieces"] == odd["unknown_pieces"] + marks["unknown_pieces"]
    found = decode(tmp_path / "out")
    loaded = load_tokenizer(tmp_path / "out" / "tokenizer")
    expected = [round_trip(loaded, files[name]) for name in sorted(files)]
    assert found == [*expected, ""], "the end mark of no document is missing or doubled"


def test_a_held_out_document_is_in_one_split_only(tmp_path: Path, tokenizer: Artifact) -> None:
    texts = [f"the river {index}" for index in range(60)] * 2
    found: dict[str, set[str]] = {}
    for split in ("train", "validation"):
        facts = build(
            tmp_path,
            tokenizer,
            {"a.jsonl": numbered(texts)},
            split,
            split=split,
            holdout=0.3,
            length=8,
            remainder="pad",
        )
        assert facts["documents"] + facts["other_split"] == 120
        found[split] = set(decode(tmp_path / split)) - {""}
    assert len(found["train"] | found["validation"]) == 60
    assert not found["train"] & found["validation"]
    assert found["validation"]


def test_the_first_rows_only(tmp_path: Path, tokenizer: Artifact) -> None:
    files = {"a.jsonl": numbered(["the " * 20] * 50)}
    whole = build(tmp_path, tokenizer, files, "whole", length=16)
    some = build(tmp_path, tokenizer, files, "some", length=16, rows=5)
    assert whole["rows"] > 60
    assert some["rows"] == 5
    rows = [TokenRows.open(tmp_path / name) for name in ("whole", "some")]
    assert np.array_equal(rows[0].ids(np.arange(5)), rows[1].ids(np.arange(5)))
    assert some["documents"] == 4
    assert some["tokens"] == some["packed"] + some["dropped_tokens"] == 84
    pairs = {"a.jsonl": [{"source": "the", "target": f"the {index}"} for index in range(9)]}
    assert (
        build(tmp_path, tokenizer, pairs, "pairs", source=PAIRS, length=8, max_source=4, rows=3)["documents"]
        == 3
    )


def test_used_ids_are_those_of_the_training_rows(tmp_path: Path, tokenizer: Artifact) -> None:
    settings: dict[str, Any] = {"length": 8, "remainder": "pad", "vocabulary": "used"}
    build(tmp_path, tokenizer, {"a.jsonl": numbered(["the market", "the river"])}, "train", **settings)
    vocabulary = TokenRows.open(tmp_path / "train").vocabulary
    assert vocabulary.ids is not None
    assert {1, 2} < set(vocabulary.ids)
    assert vocabulary.size == len(vocabulary.ids) < 20
    rows = TokenRows.open(tmp_path / "train")
    assert set(np.unique(rows.ids(np.arange(rows.rows)))) == set(vocabulary.ids) - {2}
    documents = make_corpus(tmp_path / "held", {"a.jsonl": numbered(["the market fish"])})
    inputs = {
        "documents": documents,
        "tokenizer": tokenizer,
        "vocabulary": Artifact(tmp_path / "train", tokenizer.manifest),
    }
    facts = run_tokenize(tmp_path / "validation", inputs, split="validation", **settings)
    assert Vocabulary.read(tmp_path / "validation" / "vocabulary.json") == vocabulary
    assert facts["outside_vocabulary"] > 0
    held = TokenRows.open(tmp_path / "validation")
    assert (vocabulary.to_head(held.ids(np.arange(held.rows))) < vocabulary.size).all()


def test_a_tokenizer_alone_in_a_file_will_do_and_a_model_is_left_behind(
    tmp_path: Path, tokenizer: Artifact
) -> None:
    plain = (tokenizer.path / "data" / "tokenizer.json").read_bytes()
    single = make_corpus(tmp_path / "single", {"asset.json": plain})
    encoder = make_corpus(
        tmp_path / "encoder", {"tokenizer.json": plain, "model.safetensors": b"large", "config.json": "{}"}
    )
    documents = make_corpus(tmp_path / "documents", {"a.jsonl": numbered(["the market"])})
    for name, source in (("one", single), ("two", encoder)):
        run_tokenize(tmp_path / name, {"documents": documents, "tokenizer": source}, length=2)
        assert [path.name for path in (tmp_path / name / "tokenizer").iterdir()] == ["tokenizer.json"]
    nothing = make_corpus(tmp_path / "nothing", {"spiece.model": b"x", "README.md": "y"})
    with pytest.raises(Failed, match=r"holds no tokenizer\.json"):
        run_tokenize(tmp_path / "three", {"documents": documents, "tokenizer": nothing}, length=2)
    with pytest.raises(Misconfigured, match=r"\[SEP\]"):
        run_tokenize(
            tmp_path / "four", {"documents": documents, "tokenizer": single}, length=2, end_token="[SEP]"
        )


def test_killed_and_started_again_it_goes_on_and_ends_the_same(tmp_path: Path, tokenizer: Artifact) -> None:
    texts = [f"the market by the river {index} " * 12 for index in range(5000)]
    documents = make_corpus(tmp_path / "documents", {"a.jsonl": numbered(texts)})
    (tmp_path / "tokenizer").symlink_to(tokenizer.path)
    child = subprocess.Popen([sys.executable, str(CHILD), str(tmp_path), "2"])
    parts = tmp_path / "out" / "parts"
    deadline = time.monotonic() + 60
    while len(list(parts.glob("*.json"))) < 3 and child.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    workers_left = psutil.Process(child.pid).children(recursive=True)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    finished = {
        path: path.stat().st_mtime_ns for path in parts.glob("*.arrow") if path.with_suffix(".json").exists()
    }
    assert len(finished) >= 3
    assert not (parts / "complete.json").exists(), "it was too fast to be killed half-way"
    _, alive = psutil.wait_procs(workers_left, timeout=10)
    assert not alive, "a worker outlived its parent"
    kept: list[bool] = []
    monkeypatch = pytest.MonkeyPatch()
    with monkeypatch.context() as patch:
        patch.setattr("elf.stages.tokenization.remove_at_once", lambda path: kept.extend(
            path.stat().st_mtime_ns == when for path, when in finished.items()
        ))  # fmt: skip
        inputs = {"documents": documents, "tokenizer": tokenizer}
        facts = run_tokenize(tmp_path / "out", inputs, length=32)
    assert kept
    assert all(kept), "a finished part was made again"
    for path in parts.iterdir():
        path.unlink()
    parts.rmdir()
    undisturbed = run_tokenize(tmp_path / "again", inputs, length=32)
    assert facts == undisturbed
    assert digest_folder(tmp_path / "out") == digest_folder(tmp_path / "again")
