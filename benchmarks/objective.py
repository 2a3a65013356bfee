"""The product's training objective against the algorithm as it is written down: time, memory, equality.

    .venv/bin/python benchmarks/objective.py [--threads 1]

Both sides get the same weights, batch and draws: forward and backward, no optimiser, no encoder. The literal side is
the oracle of the tests: three forward passes over every row, logits for every position, unfused cross-entropy.
"""

import argparse
import importlib.util
import sys
from functools import partial
from pathlib import Path
from types import ModuleType

import torch
from measuring import Bar, finish, medians, peak_growth
from torch import Tensor

from elf.stages.model.config import ModelConfig, ObjectiveConfig
from elf.stages.model.draws import Draws, draw
from elf.stages.model.network import Network, build
from elf.stages.model.objective import loss
from elf.stages.model.rows import Batch

ROOT = Path(__file__).resolve().parent.parent
STEPS = 2
"""Steps of training that are timed: the first ones in which as many rows decode and condition themselves as do on
average, for what a step costs depends on it."""


def load_literal() -> ModuleType:
    """The tests' reference, by its path: tests are no package."""
    path = ROOT / "tests" / "stages" / "model" / "literal.py"
    spec = importlib.util.spec_from_file_location("literal", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["literal"] = module
    spec.loader.exec_module(module)
    return module


def decoded(draws: Draws) -> int:
    return int(draws.decode_B.sum())


def conditioned(draws: Draws) -> int:
    return int((draws.coin_B & ~draws.decode_B).sum())


class Case:
    """One network, batch and draws, and the two ways to its gradients."""

    def __init__(self, *, length: int, batch: int, seed: int = 0) -> None:
        self.model = ModelConfig(
            width=512, vocabulary=32128, length=length, hidden=256, depth=6, heads=4, bottleneck=128
        )
        self.objective = ObjectiveConfig()
        generator = torch.Generator().manual_seed(seed)
        self.network: Network = build(self.model, generator).train()
        x_BLD = torch.randn(batch, length, self.model.width, generator=generator)
        ids_BL = torch.randint(self.model.vocabulary, (batch, length), generator=generator)
        self.batch = Batch.unconditional(x_BLD, ids_BL)
        first = self.typical(seed, batch)
        self.steps = [
            draw(seed, step, range(batch), length=length, width=self.model.width, objective=self.objective)
            for step in range(first, first + STEPS)
        ]
        self.literal_loss = load_literal().literal_loss

    def typical(self, seed: int, batch: int) -> int:
        """The first step from which on ``STEPS`` of them have the average number of rows of each kind, rounded."""
        decode = self.objective.decode_share
        wanted = [
            round(STEPS * batch * share) for share in (decode, (1 - decode) * self.objective.self_condition)
        ]
        for first in range(10_000):
            chosen = [
                draw(seed, step, range(batch), length=1, width=1, objective=self.objective)
                for step in range(first, first + STEPS)
            ]
            if wanted == [sum(count(draws) for draws in chosen) for count in (decoded, conditioned)]:
                return first
        raise RuntimeError(f"no {STEPS} steps have {wanted} decode and self-conditioned rows")

    def literal(self, draws: Draws) -> Tensor:
        self.network.zero_grad(set_to_none=True)
        total = self.literal_loss(self.network, self.batch, draws, self.objective).total
        total.backward()
        return total.detach()

    def product(self, draws: Draws) -> Tensor:
        self.network.zero_grad(set_to_none=True)
        found = loss(self.network, self.batch, draws, self.objective)
        total = found.sum / found.count
        total.backward()
        return total.detach()

    def gradients(self) -> dict[str, Tensor]:
        named = self.network.named_parameters()
        return {name: each.grad.clone() for name, each in named if each.grad is not None}


def largest_error(have: dict[str, Tensor], want: dict[str, Tensor]) -> float:
    """The largest relative L2 distance of a gradient; one that is absent on a side counts as zeros."""
    errors = [
        float((have.get(name, torch.zeros_like(want[name])) - want[name]).norm() / want[name].norm())
        for name in want
        if want[name].norm() > 0
    ]
    return max(errors)


def main() -> None:
    parser = argparse.ArgumentParser(description="The objective against the algorithm as it is written down.")
    parser.add_argument("--threads", type=int, default=1)
    torch.set_num_threads(parser.parse_args().threads)
    case = Case(length=128, batch=16)
    first = case.steps[0]
    literal, wanted = float(case.literal(first)), case.gradients()
    product, have = float(case.product(first)), case.gradients()
    rows = [sum(map(count, case.steps)) for count in (decoded, conditioned)]
    print(f"256 × 6, L 128, B 16, V 32,128; {STEPS} steps: {rows[0]} decode rows, {rows[1]} self-conditioned")
    seconds: dict[str, float] = {"literal": 0.0, "product": 0.0}
    for draws in case.steps:
        one = {"literal": partial(case.literal, draws), "product": partial(case.product, draws)}
        for name, each in medians(one, rounds=1).items():
            seconds[name] += each / STEPS
    wide = Case(length=256, batch=16)
    memory = {
        "literal": peak_growth(partial(wide.literal, wide.steps[0])),
        "product": peak_growth(partial(wide.product, wide.steps[0])),
    }
    print(f"{'':8}  {'s a step':>8}  {'MB more, L 256':>14}")
    for name in ("literal", "product"):
        print(f"{name:8}  {seconds[name]:8.3f}  {memory[name] / 1e6:14.0f}")
    finish(
        [
            Bar("loss, relative difference", abs(product - literal) / abs(literal), 1e-6, at_most=True),
            Bar("gradients, relative difference", largest_error(have, wanted), 1e-5, at_most=True),
            Bar("time, literal / product", seconds["literal"] / seconds["product"], 2.4),
            Bar("memory, literal / product", memory["literal"] / memory["product"], 2.4),
        ]
    )


if __name__ == "__main__":
    main()
