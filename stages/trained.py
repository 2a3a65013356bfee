"""A finished training run: what sampling needs to know of it (``model.json``) and its weights, loaded strictly.

Weights are saved under the network's own names, whatever wrapped it while it was trained. A name with a wrapper's
prefix (``_orig_mod.``, ``module.``), a name too many or too few, or another shape is refused, never passed over.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from elf.cache.files import write_atomic
from elf.cache.manifest import JSON
from elf.pipeline.errors import Failed
from elf.pipeline.section import differences
from elf.stages.checkpoint import Checkpoint, Unusable, prove, read, saved_steps
from elf.stages.latents import Scale
from elf.stages.model.config import ModelConfig, ObjectiveConfig
from elf.stages.model.network import Network
from elf.stages.vocabulary import Vocabulary

CARD = "model.json"
PARTS = {"ema": "ema", "raw": "model"}


@dataclass(frozen=True, slots=True)
class Card:
    """``model.json``. ``vocabulary`` digests the whole vocabulary of the tokens, ``encoder`` is the fingerprint
    from the encode stage's facts: with another of either, the weights mean nothing."""

    model: ModelConfig
    objective: ObjectiveConfig
    scale: Scale
    vocabulary: str
    encoder: JSON

    def write(self, path: Path) -> None:
        """Write ``model.json``; what most models have not is said of those that have it."""
        plain = asdict(self)
        if not self.model.table:
            del plain["model"]["table"]
        write_atomic(path, json.dumps(plain, indent=1, sort_keys=True, allow_nan=False) + "\n")

    @classmethod
    def read(cls, path: Path) -> "Card":
        """What ``write`` wrote. Raises Failed on anything else."""
        try:
            plain = json.loads(path.read_text(encoding="utf-8"))
            parts = {
                "model": ModelConfig(**plain.pop("model")),
                "objective": ObjectiveConfig(**plain.pop("objective")),
                "scale": Scale(**plain.pop("scale")),
            }
            return cls(**parts, **plain)
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise Failed(
                f"{path} does not describe a trained model: {error}. Train again: run train with --force."
            ) from error

    def check_fits(self, *, vocabulary: Vocabulary | None = None, encoder: JSON = None) -> None:
        """Refuse tokens with another vocabulary, or latents of another encoder, than the model was trained on."""
        if vocabulary is not None:
            check_vocabulary(
                vocabulary, self.vocabulary, size=self.model.vocabulary, length=self.model.length
            )
        if encoder is not None:
            _refuse_others({"encoder": self.encoder}, {"encoder": encoder})

    def facts(self) -> dict[str, JSON]:
        """What the facts of a training run tell of it."""
        return {"scale": asdict(self.scale)}


def check_vocabulary(given: Vocabulary, digest: str, *, size: int, length: int) -> None:
    """Refuse a vocabulary other than the one of that digest, which a model of that size and length was trained on."""
    # A head may have more entries than its tokenizer: imported ones do.
    if vocabulary_digest(given) == digest:
        return
    _refuse_others(
        {"vocabulary size": size, "row length": length, "vocabulary": digest},
        {
            "vocabulary size": given.size,
            "row length": given.length,
            "vocabulary": vocabulary_digest(given),
        },
    )


def _refuse_others(trained: dict[str, JSON], given: dict[str, JSON]) -> None:
    for field, wanted, have in sorted(differences(trained, given), key=lambda each: each[0] == "vocabulary"):
        raise Failed(
            f"The model was trained with {field} {wanted}, but is given {field} {have}. Use the tokens and "
            "latents of the run it was trained in, or train a model on these."
        )


@dataclass(frozen=True, slots=True, eq=False)
class Trained:
    """A network ready to sample from, in evaluation mode. ``digest`` is that of the file its weights came from."""

    network: Network
    card: Card
    digest: str

    @property
    def model(self) -> ModelConfig:
        return self.card.model

    @property
    def objective(self) -> ObjectiveConfig:
        return self.card.objective

    @property
    def mean(self) -> float:
        return self.card.scale.mean

    @property
    def std(self) -> float:
        return self.card.scale.std


def method_of(path: Path) -> str:
    """What the training artifact in ``path`` is a model of: ``flow``, or a method of ``elf.stages.token_models``."""
    try:
        plain = json.loads((path / CARD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return "flow"  # whoever reads it will say what is wrong with it
    return str(plain.get("method", "flow")) if isinstance(plain, dict) else "flow"


def load_trained(path: Path, weights: Literal["ema", "raw"], device: torch.device | str = "cpu") -> Trained:
    """The last weights of the training artifact in ``path``. Raises Failed naming what is missing or differs."""
    card = Card.read(path / CARD)
    part = PARTS[weights]
    found = last_checkpoint(path, part)
    folder = path / "checkpoints" / f"step_{found.step}"
    digest = prove(folder, [f"{part}.safetensors"])[f"{part}.safetensors"]
    network = Network(card.model)
    load_weights(network, found.ema if weights == "ema" else found.model, source=folder)
    return Trained(network.to(device).eval().requires_grad_(False), card, digest)


def same_network(first: Trained, second: Trained) -> None:
    """Refuse two models whose networks, objectives or latents differ. Raises Failed naming the first difference."""
    have, wanted = (json.loads(json.dumps(asdict(each.card))) for each in (first, second))
    # One of them may have been imported without its encoder.
    for name, was, asked in differences(wanted | {"encoder": None}, have | {"encoder": None}):
        raise Failed(
            f"The student would start from a model whose {name} is {asked}, while its teacher's is {was}. Both must be "
            "of one training run: distil again from the first round."
        )


def last_checkpoint(path: Path, *parts: str) -> Checkpoint:
    """The last checkpoint of the training artifact in ``path``, with the named parts, or model and ema.

    Raises Failed where there is none or it is damaged.
    """
    steps = saved_steps(path / "checkpoints")
    if not steps:
        raise Failed(f"{path}/checkpoints holds no checkpoint, so there are no weights to load. Train again.")
    folder = path / "checkpoints" / f"step_{max(steps)}"
    try:
        return read(folder, parts or tuple(PARTS.values()))
    except Unusable as reason:
        which = {"ema": "ema ", "model": "raw "}.get(parts[0] if len(parts) == 1 else "", "")
        raise Failed(f"The {which}weights cannot be loaded: {folder} {reason}. Train again.") from reason


def load_weights(network: nn.Module, tensors: Mapping[str, Tensor], *, source: Path) -> None:
    """Copy tensors into the network; every name and shape must be the network's own. Raises Failed otherwise."""
    wanted = network.state_dict()
    problems = [
        *_differing_settings(tensors, wanted),
        *_listed("missing", wanted.keys() - tensors.keys()),
        *_listed("unexpected", tensors.keys() - wanted.keys()),
        *(
            f"{name} is {tuple(tensors[name].shape)} instead of {tuple(wanted[name].shape)}"
            for name in sorted(wanted.keys() & tensors.keys())
            if tensors[name].shape != wanted[name].shape
        ),
    ]
    if problems:
        raise Failed(
            f"The weights in {source} are not of this model: {'; '.join(problems[:6])}. Load weights that were saved "
            "by a run with the same model settings, without a wrapper's prefix on their names."
        )
    network.load_state_dict(dict(tensors), strict=True)


def vocabulary_digest(vocabulary: Vocabulary) -> str:
    """sha256 of everything a vocabulary says."""
    return hashlib.sha256(json.dumps(asdict(vocabulary), sort_keys=True).encode()).hexdigest()


def _differing_settings(have: Mapping[str, Tensor], want: Mapping[str, Tensor]) -> Iterator[str]:
    """Settings of the model that two sets of weights show to differ."""
    found = [_depth(have), _depth(want)]
    if found[0] and found[0] != found[1]:
        yield f"depth is {found[0]} in the weights and {found[1]} in the model"
    for field, name in (
        ("vocabulary", "decode_vocabulary.bias"),
        ("width", "flow_head.bias"),
        ("hidden", "flow_norm.weight"),
        ("hidden / heads", "trunk.blocks.0.attention.query_norm.weight"),
        ("vocabulary", "table"),
        ("vocabulary", "bias"),
        ("hidden", "norm.weight"),
        ("hidden / heads", "blocks.0.attention.query_norm.weight"),
    ):
        if name in have and name in want and have[name].shape != want[name].shape:
            yield f"{field} is {have[name].shape[0]} in the weights and {want[name].shape[0]} in the model"


def _depth(tensors: Mapping[str, Tensor]) -> int:
    return sum(
        name.startswith(("trunk.", "blocks.")) and name.endswith("attention.out.bias") for name in tensors
    )


def _listed(what: str, names: set[str]) -> list[str]:
    if not names:
        return []
    shown = ", ".join(sorted(names)[:3])
    return [f"{what}: {shown}{f' and {len(names) - 3} more' if len(names) > 3 else ''}"]
