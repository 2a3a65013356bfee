"""Encoders of a few thousand random weights, and token rows that fit them."""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from tokens import make_tokens
from toy_training import finish
from transformers import (
    BertConfig,
    BertModel,
    PreTrainedModel,
    T5Config,
    T5ForConditionalGeneration,
)

from elf.cache.store import Artifact
from elf.pipeline.progress import LineProgress
from elf.pipeline.stage import Compute, StageContext
from elf.stages.vocabulary import Vocabulary

WORDS = tuple(f"w{number}" for number in range(60))
VOCABULARY = len(WORDS) + 3
ONE = Compute(device="cpu", threads=1, workers=1)


def make_t5(**settings: Any) -> T5ForConditionalGeneration:
    """A T5 of two layers, width 32, in evaluation mode."""
    size: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "d_model": 32,
        "d_kv": 8,
        "d_ff": 48,
        "num_layers": 2,
        "num_heads": 4,
    }
    return _seeded(T5ForConditionalGeneration, T5Config(**(size | settings)))


def make_bert(**settings: Any) -> BertModel:
    """A BERT of three layers, width 32, at most 64 positions."""
    size: dict[str, Any] = {
        "vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4,
        "intermediate_size": 48, "max_position_embeddings": 64, "initializer_range": 0.3,
    }  # fmt: skip
    return _seeded(BertModel, BertConfig(**(size | settings)))


def _seeded(kind: Any, config: Any) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return kind(config).eval()


@dataclass(frozen=True, slots=True)
class Case:
    """The inputs of an encode."""

    folder: Path
    tokens: Artifact
    encoder: Artifact

    @property
    def inputs(self) -> Mapping[str, Artifact]:
        return {"tokens": self.tokens, "encoder": self.encoder}

    def context(self, out: str = "out", compute: Compute = ONE) -> StageContext:
        path = self.folder / out
        path.mkdir(exist_ok=True)
        return StageContext(path, self.inputs, compute, LineProgress())


def make_case(
    folder: Path,
    model: PreTrainedModel,
    documents: Sequence[str] | Sequence[tuple[str, str]],
    *,
    length: int = 16,
    max_source: int | None = None,
) -> Case:
    """Token rows of the documents, and the model with their tokenizer."""
    path = make_tokens(folder / "tokens", documents, words=WORDS, length=length, max_source=max_source)
    tokens = finish(path, "tokenize", {"rows": json.loads((path / "counts.json").read_text())["rows"]}, {})
    data = folder / "encoder" / "data"
    model.save_pretrained(data)
    shutil.copy(path / "tokenizer" / "tokenizer.json", data)
    return Case(folder, tokens, finish(folder / "encoder", "fetch", {}, {}))


def make_sentinel_rows(
    folder: Path,
    documents: Sequence[str] | Sequence[tuple[str, str]],
    *,
    length: int,
    sentinels: int = 4,
    max_source: int | None = None,
) -> Artifact:
    """Token rows whose tokenizer also has ``<extra_id_0>`` … , the first with the highest id."""
    path = make_tokens(folder, documents, words=WORDS, length=length, max_source=max_source)
    file = str(path / "tokenizer" / "tokenizer.json")
    tokenizer = Tokenizer.from_file(file)
    tokenizer.add_special_tokens([f"<extra_id_{number}>" for number in reversed(range(sentinels))])
    tokenizer.save(file)
    vocabulary = Vocabulary.read(path / "vocabulary.json")
    size = vocabulary.size + sentinels
    replace(vocabulary, size=size, tokenizer_size=size).write(path / "vocabulary.json")
    return finish(path, "tokenize", {}, {})


def texts(count: int, *, seed: int = 0) -> list[str]:
    """Documents of 3 to 30 words."""
    random = np.random.default_rng(seed)
    return [" ".join(random.choice(WORDS, int(random.integers(3, 31)))) for _ in range(count)]


def pairs(count: int, *, seed: int = 0) -> list[tuple[str, str]]:
    """Sources and targets of 1 to 9 words."""
    random = np.random.default_rng(seed)

    def side() -> str:
        return " ".join(random.choice(WORDS, int(random.integers(1, 10))))

    return [(side(), side()) for _ in range(count)]


def tree(folder: Path) -> dict[str, bytes]:
    """Every file of a payload (not aux/) by its relative name."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "aux" not in path.relative_to(folder).parts
    }
