"""Models of tokens small enough for tests, with every parameter away from its start, and one that knows a rule."""

from typing import Any

import torch
from torch import Tensor, nn

from elf.stages.model.config import ObjectiveConfig
from elf.stages.model.token_config import TokenConfig
from elf.stages.model.token_draws import MaskDraws, TokenDraws, draw_masks, draw_tokens
from elf.stages.model.token_network import TokenNetwork, build_tokens

SHAPE: dict[str, Any] = {"vocabulary": 23, "length": 7, "hidden": 16, "depth": 4, "heads": 2}
OBJECTIVE = ObjectiveConfig(padding="eos")


def tiny_tokens(method: Any, *, seed: int = 0, **changed: Any) -> TokenNetwork:
    """In float64."""
    generator = torch.Generator().manual_seed(seed)
    network = build_tokens(TokenConfig(method, **(SHAPE | changed)), generator)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return network.double()


def tiny_ids(rows: int, *, seed: int = 1, **changed: int) -> Tensor:
    shape = SHAPE | changed
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(shape["vocabulary"], (rows, shape["length"]), generator=generator)


def everything(ids_BL: Tensor) -> Tensor:
    """Every position counts."""
    return torch.ones_like(ids_BL, dtype=torch.bool)


def no_condition(ids_BL: Tensor) -> Tensor:
    return torch.zeros(len(ids_BL), dtype=torch.int64)


def token_draws(rows: int, *, step: int = 0) -> TokenDraws:
    return draw_tokens(3, step, range(rows), length=SHAPE["length"], width=0, objective=OBJECTIVE)


def mask_draws(rows: int, *, length: int = SHAPE["length"], seed: int = 3, step: int = 0) -> MaskDraws:
    return draw_masks(seed, step, range(rows), length=length, width=0, objective=OBJECTIVE)


class Told(nn.Module):
    """Stands for a network: features are one-hot of the token that stands there, the last entry where none does, and
    `rule` makes log-probabilities (B, L, V) of them."""

    def __init__(self, vocabulary: int, rule: Any) -> None:
        super().__init__()
        self.config = TokenConfig("masked", vocabulary, 1, 2, 1, 1)
        self.rule = rule
        self.weight = torch.eye(vocabulary, dtype=torch.float64)
        self.bias = torch.zeros(vocabulary, dtype=torch.float64)
        self.unknown = torch.eye(vocabulary + 1, dtype=torch.float64)[-1].view(1, 1, -1)

    def embed(self, ids_BL: Tensor) -> Tensor:
        return torch.eye(self.config.vocabulary + 1, dtype=torch.float64)[ids_BL]

    def forward(self, x_BLH: Tensor) -> Tensor:
        return self.rule(x_BLH)

    def logits(self, features: Tensor) -> Tensor:
        return features
