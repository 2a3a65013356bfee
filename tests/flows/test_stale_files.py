"""Only a key decides what is reused: bytes, not names or times; settings and versions, not the text of a program."""

import os
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from toy_stages import Recorder

from elf.cache.store import Artifact
from elf.flows.request import load_request
from elf.pipeline.progress import LineProgress
from elf.pipeline.runner import Outcome, materialise

V1 = '{"id": "d", "text": "the quick brown fox"}\n' * 40
V2 = V1.replace("brown fox", "white hen")
TIME = 1_700_000_000_000_000_000


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "texts.jsonl"
    put(path, V1)
    return path


def put(path: Path, text: str) -> None:
    """The same path, size and time, other bytes."""
    path.write_text(text)
    os.utime(path, ns=(TIME, TIME))


def tokenized(corpus: Path, store: Path) -> dict[str, Outcome]:
    settings = [
        f"data.train.asset.uri=path:{corpus}",
        "data.holdout=0",
        "tokenize.subwords.size=60",
        "tokenize.length=8",
        "train.heldout=null",
    ]
    request = load_request("tiny", settings, str(store))
    quiet = LineProgress(every=1e9)
    return materialise(request.plan, request.store, watch=Recorder(), progress=quiet, until="tokenize")


def words(artifact: Artifact) -> str:
    from elf.stages.vocabulary import load_tokenizer

    tokenizer = load_tokenizer(artifact.path / "tokenizer")
    ids = [
        row for file in sorted((artifact.path / "rows").iterdir()) for row in pq.read_table(file)["input_ids"]
    ]
    return " ".join(tokenizer.decode(row.as_py()) for row in ids)


def test_other_bytes_under_the_same_name_size_and_time_are_read(corpus: Path, tmp_path: Path) -> None:
    before = corpus.stat()
    first = tokenized(corpus, tmp_path / "store")["tokenize"].artifact
    put(corpus, V2)
    after = corpus.stat()
    assert (before.st_size, before.st_mtime_ns) == (after.st_size, after.st_mtime_ns)
    second = tokenized(corpus, tmp_path / "store")["tokenize"]
    assert not second.reused
    assert "brown" in words(first)
    assert "brown" not in words(second.artifact)
    assert "white hen" in words(second.artifact)
    put(corpus, V1)
    assert tokenized(corpus, tmp_path / "store")["tokenize"].artifact.path == first.path


def test_the_same_bytes_elsewhere_are_a_hit(corpus: Path, tmp_path: Path) -> None:
    tokenized(corpus, tmp_path / "store")
    other = tmp_path / "deep" / "renamed.jsonl"
    other.parent.mkdir()
    other.write_text(V1)
    assert all(outcome.reused for outcome in tokenized(other, tmp_path / "store").values())
