"""A network small enough for tests, with every parameter away from its start, and batches for it."""

from dataclasses import replace
from typing import Any

import torch

from elf.stages.model.config import ModelConfig, ObjectiveConfig
from elf.stages.model.draws import Draws, draw
from elf.stages.model.network import Network, build
from elf.stages.model.objective import Batch

SHAPE: dict[str, Any] = {
    "width": 6,
    "vocabulary": 23,
    "length": 7,
    "hidden": 16,
    "depth": 4,
    "heads": 2,
    "bottleneck": 5,
    "time_tokens": 2,
    "guidance_tokens": 3,
    "mode_tokens": 1,
}


def tiny_config(**changed: Any) -> ModelConfig:
    return ModelConfig(**(SHAPE | changed))


def tiny_network(*, seed: int = 0, dtype: torch.dtype = torch.float64, **changed: Any) -> Network:
    """Parameters that a fresh network has at 0 or 1 are moved by small normals too."""
    generator = torch.Generator().manual_seed(seed)
    network = build(tiny_config(**changed), generator)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return network.to(dtype)


def tiny_batch(
    rows: int, *, conditional: bool = False, seed: int = 1, dtype: torch.dtype = torch.float64
) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    length, width, vocabulary = SHAPE["length"], SHAPE["width"], SHAPE["vocabulary"]
    x = torch.randn(rows, length, width, generator=generator).to(dtype)
    ids = torch.randint(vocabulary, (rows, length), generator=generator)
    if not conditional:
        return Batch.unconditional(x, ids)
    condition = torch.randint(0, length // 2, (rows,), generator=generator)
    valid = torch.randint(length // 2, length + 1, (rows,), generator=generator)
    return Batch(x, ids, condition, valid)


def tiny_draws(
    rows: int, objective: ObjectiveConfig, *, seed: int = 3, dtype: torch.dtype = torch.float64
) -> Draws:
    length, width = SHAPE["length"], SHAPE["width"]
    drawn = draw(seed, 0, range(rows), length=length, width=width, objective=objective)
    floats = ("t_B", "noise_BLD", "guidance_B", "decode_t_BL", "decode_noise_BLD")
    return replace(drawn, **{name: getattr(drawn, name).to(dtype) for name in floats})
