"""A training step as the algorithm is written down, to compare the product's with.

The encoder is transformers' eager T5 of t5-small's shape with an L × L mask, run at every step; the loss is the oracle
of the product's tests: three forward passes over every row, logits for every position, unfused cross-entropy. The
optimiser takes matrix by matrix through five plain Newton–Schulz steps, the average tensor by tensor.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from measuring import Stopwatch
from oracle import load_literal
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import T5Config, T5EncoderModel

from elf.stages.model.config import ObjectiveConfig
from elf.stages.model.draws import Draws
from elf.stages.model.network import Network
from elf.stages.model.rows import Batch

T5_SMALL: dict[str, Any] = {
    "vocab_size": 32128,
    "d_model": 512,
    "d_kv": 64,
    "d_ff": 2048,
    "num_layers": 6,
    "num_heads": 8,
}


class LiteralEncoder:
    """Eager T5 with random weights."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        config = T5Config(**T5_SMALL)
        config._attn_implementation = "eager"
        self.model = T5EncoderModel(config).eval().requires_grad_(requires_grad=False)

    @torch.no_grad()
    def states(self, ids_BL: Tensor) -> Tensor:
        """(B, L, D) of rows without padding or condition."""
        mask_BLL = torch.ones(*ids_BL.shape, ids_BL.shape[1])
        return self.model(input_ids=ids_BL, attention_mask=mask_BLL).last_hidden_state


class LiteralStep:
    """``step`` trains on the rows of the given ids, latents made on the way, timed by its parts."""

    def __init__(
        self,
        network: Network,
        encoder: LiteralEncoder,
        objective: ObjectiveConfig,
        watch: Stopwatch,
        *,
        mean: float,
        std: float,
    ) -> None:
        self.network, self.encoder, self.objective, self.watch = network.train(), encoder, objective, watch
        self.mean, self.std = mean, std
        self.loss_of = load_literal().literal_loss
        self.optimizer = LiteralMuon(network.parameters())
        self.average = {name: each.detach().clone() for name, each in network.named_parameters()}

    def encode(self, ids_BL: Tensor) -> Batch:
        x_BLD = (self.encoder.states(ids_BL) - self.mean) / self.std
        return Batch.unconditional(x_BLD, ids_BL)

    def add_gradients(self, batch: Batch, draws: Draws) -> float:
        self.network.zero_grad(set_to_none=True)
        total = self.loss_of(self.network, batch, draws, self.objective).total
        total.backward()
        return float(total.detach())

    @torch.no_grad()
    def advance(self, lr: float) -> None:
        self.optimizer.step(lr)
        self.move_average()

    @torch.no_grad()
    def move_average(self) -> None:
        for name, parameter in self.network.named_parameters():
            self.average[name].mul_(0.9999).add_(parameter, alpha=1 - 0.9999)

    def step(self, ids_BL: Tensor, draws: Draws, *, lr: float, limit: float = 1.0) -> None:
        with self.watch("literal whole"):
            with self.watch("literal encoder"):
                batch = self.encode(ids_BL)
            with self.watch("literal loss"):
                self.add_gradients(batch, draws)
            nn.utils.clip_grad_norm_(self.network.parameters(), limit)
            with self.watch("literal optimiser"):
                self.advance(lr)

    def parts(self, ids_BL: Tensor, draws: Draws, *, lr: float) -> list[Callable[[], object]]:
        """What a step is made of, each to be timed alone: encoder, two forward passes, one with its backward pass, the
        decode head with its loss, the clip, the optimiser with the average."""
        batch, network = self.encode(ids_BL), self.network
        input_BLC = torch.cat([batch.x_BLD, batch.x_BLD], dim=-1)
        h_BLH = torch.randn(*ids_BL.shape, network.config.hidden)

        def forward() -> Tensor:
            hidden = network(input_BLC, draws.t_B, guidance_B=draws.guidance_B)
            return network.flow(hidden)

        def twice() -> None:
            with torch.no_grad():
                forward()
                forward()

        def there_and_back() -> None:
            network.zero_grad(set_to_none=True)
            forward().square().mean().backward()

        def head() -> None:
            network.zero_grad(set_to_none=True)
            logits = network.logits(h_BLH.requires_grad_())
            F.cross_entropy(logits.flatten(0, 1), ids_BL.flatten(), reduction="none").mean().backward()

        def clip() -> None:
            for parameter in network.parameters():
                parameter.grad = parameter.detach() if parameter.grad is None else parameter.grad
            nn.utils.clip_grad_norm_(network.parameters(), 1e9)

        return [lambda: self.encode(ids_BL), twice, there_and_back, head, clip, lambda: self.advance(lr)]


class LiteralMuon:
    """Muon and Nesterov Adam, tensor by tensor."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self.parameters = list(parameters)
        self.momenta = [torch.zeros_like(each) for each in self.parameters]
        self.squares = [None if each.ndim == 2 else torch.zeros_like(each) for each in self.parameters]
        self.steps = 0

    @torch.no_grad()
    def step(self, lr: float) -> None:
        self.steps += 1
        k = self.steps
        for parameter, momentum, square in zip(self.parameters, self.momenta, self.squares, strict=True):
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            beta = 0.95 if square is None else 0.9
            momentum.mul_(beta).add_(gradient, alpha=1 - beta)
            ahead = momentum * (beta / (1 - beta ** (k + 1))) + gradient * ((1 - beta) / (1 - beta**k))
            if square is None:
                rows, columns = parameter.shape
                parameter.add_(newton_schulz(ahead), alpha=-lr * max(1.0, rows / columns) ** 0.5)
            else:
                square.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
                parameter.addcdiv_(ahead, (square / (1 - 0.999**k)).sqrt().add_(1e-8), value=-lr)


def newton_schulz(matrix: Tensor) -> Tensor:
    """X ← aX + (bA + cA²)X with A = XXᵀ, five times."""
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.mT if tall else matrix
    x = x / (x.norm() + 1e-8)
    for _ in range(5):
        gram = x @ x.mT
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    return x.mT if tall else x


def gradients(network: nn.Module) -> dict[str, Tensor]:
    return {name: each.grad.clone() for name, each in network.named_parameters() if each.grad is not None}


def largest_error(have: dict[str, Tensor], want: dict[str, Tensor]) -> float:
    """The largest relative L2 distance of a gradient; one that is absent on a side counts as zeros."""
    errors = [
        float((have.get(name, torch.zeros_like(want[name])) - want[name]).norm() / want[name].norm())
        for name in want
        if want[name].norm() > 0
    ]
    return max(errors)
