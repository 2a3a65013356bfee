"""Models of random weights over a handful of words, for the sample stage: text, and pairs with their stored states."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from judging import make_artifact
from tokens import make_tokens
from toy_training import Size, make_latents

from elf.cache.store import Artifact
from elf.stages import checkpoint
from elf.stages.config import Sample
from elf.stages.latents import Scale
from elf.stages.model.config import ModelConfig, ObjectiveConfig
from elf.stages.model.network import build
from elf.stages.rows import TokenRows
from elf.stages.trained import Card, vocabulary_digest

WORDS = [f"word{i}" for i in range(30)]
TEXT = [" ".join(WORDS[i % 30] for i in range(start, start + 20)) for start in range(12)]
PAIRS = [(f"word{i} word{i + 1} word{i + 2}", f"word{i + 9} word{i}") for i in range(9)]
LENGTH, WIDTH = 8, 6
PAIR_SIZE = Size(rows=len(PAIRS), length=LENGTH, width=WIDTH, vocabulary=33, max_source=3)
SMALL: Mapping[str, Any] = {"depth": 1, "hidden": 16, "heads": 2, "bottleneck": 4}


def make_model(
    path: Path, tokens: Artifact, *, objective: Any = None, scale: float = 1.0, **shape: Any
) -> Artifact:
    """A train artifact of random weights, `raw` and `ema` different ones, that fits `tokens`."""
    vocabulary = TokenRows.open(tokens.path).vocabulary
    sizes: dict[str, Any] = {
        "width": WIDTH,
        "vocabulary": vocabulary.size,
        "length": vocabulary.length,
        **SMALL,
        **shape,
    }
    model = ModelConfig(**sizes)
    card = Card(
        model,
        objective or ObjectiveConfig(padding="eos"),
        Scale(0.0, scale),
        vocabulary_digest(vocabulary),
        "toy",
    )
    weights = []
    for seed in (0, 1):
        generator = torch.Generator().manual_seed(seed)
        network = build(model, generator)
        weights.append(
            {
                name: tensor + 0.4 * torch.randn(tensor.shape, generator=generator)
                for name, tensor in network.state_dict().items()
            }
        )
    artifact = make_artifact(path, "train")
    checkpoint.save(
        path / "checkpoints",
        checkpoint.Checkpoint(3, weights[0], weights[1], {"a": torch.zeros(1)}, {}),
        keep=1,
    )
    card.write(path / "model.json")
    return artifact


def make_text(root: Path) -> dict[str, Artifact]:
    """Inputs of sampling text."""
    tokens = make_artifact(make_tokens(root / "tokens", TEXT, words=WORDS, length=LENGTH), "tokenize")
    return {"tokens": tokens, "model": make_model(root / "train", tokens)}


def make_pairs(root: Path) -> dict[str, Artifact]:
    """Inputs of sampling pairs."""
    folder = make_tokens(root / "tokens", PAIRS, words=WORDS, length=LENGTH, max_source=3)
    tokens = make_artifact(folder, "tokenize", facts={"rows": len(PAIRS)})
    latents = make_latents(root / "latents", tokens, PAIR_SIZE)
    return {"tokens": tokens, "model": make_model(root / "train", tokens), "latents": latents}


def setting(**changes: Any) -> Sample:
    """An SDE of four steps, twenty texts of two seeds, with some of it changed."""
    values = {"name": "x", "method": "sde", "steps": 4, "count": 20, "seeds": (0, 7)} | changes
    return Sample.model_validate(values)
