"""A finished training run of a model of tokens: its ``model.json``, and its weights, loaded strictly."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import torch

from elf.cache.files import write_atomic
from elf.cache.manifest import JSON
from elf.pipeline.errors import Failed
from elf.stages.checkpoint import prove
from elf.stages.model.config import Padding
from elf.stages.model.token_config import TokenConfig, TokenMethod
from elf.stages.model.token_network import TokenNetwork
from elf.stages.trained import CARD, PARTS, check_vocabulary, last_checkpoint, load_weights
from elf.stages.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class TokenCard:
    """``model.json`` of a model of tokens, which has a ``method``; that of a flow has none. ``vocabulary`` digests the
    whole vocabulary of the tokens: with another, the weights mean nothing."""

    model: TokenConfig
    padding: Padding
    vocabulary: str

    @property
    def method(self) -> TokenMethod:
        return self.model.method

    def write(self, path: Path) -> None:
        """Write ``model.json``."""
        plain = {"method": self.method, **asdict(self)}
        write_atomic(path, json.dumps(plain, indent=1, sort_keys=True, allow_nan=False) + "\n")

    @classmethod
    def read(cls, path: Path) -> "TokenCard":
        """What ``write`` wrote. Raises Failed on anything else."""
        try:
            plain = json.loads(path.read_text(encoding="utf-8"))
            model = TokenConfig(**plain["model"])
            return cls(model, plain["padding"], plain["vocabulary"])
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise Failed(
                f"{path} does not describe a trained model of tokens: {error}. Train again: run train with --force."
            ) from error

    def check_fits(self, vocabulary: Vocabulary) -> None:
        """Refuse tokens with another vocabulary than the model was trained on."""
        check_vocabulary(vocabulary, self.vocabulary, size=self.model.vocabulary, length=self.model.length)

    def facts(self) -> dict[str, JSON]:
        """What the facts of a training run tell of it."""
        return {"method": self.method}


@dataclass(frozen=True, slots=True, eq=False)
class TrainedTokens:
    """A network ready to sample from, in evaluation mode. ``digest`` is that of the file its weights came from."""

    network: TokenNetwork
    card: TokenCard
    digest: str

    @property
    def model(self) -> TokenConfig:
        return self.card.model


def load_tokens(
    path: Path, weights: Literal["ema", "raw"], device: torch.device | str = "cpu"
) -> TrainedTokens:
    """The last weights of the training artifact in ``path``. Raises Failed naming what is missing or differs."""
    card, part = TokenCard.read(path / CARD), PARTS[weights]
    found = last_checkpoint(path, part)
    folder = path / "checkpoints" / f"step_{found.step}"
    digest = prove(folder, [f"{part}.safetensors"])[f"{part}.safetensors"]
    network = TokenNetwork(card.model)
    load_weights(network, found.ema if weights == "ema" else found.model, source=folder)
    return TrainedTokens(network.to(device).eval().requires_grad_(False), card, digest)
