"""Muon on matrices with Nesterov Adam on the rest, AdamW, and the clip (paper, appendix; Muon: Jordan et al. 2024).

Both halves of Muon look ahead with bias correction: after m ← βm + (1 − β)g at step k (from 1),
    ahead(m, g) = β·m / (1 − β^(k+1)) + (1 − β)·g / (1 − β^k)
A matrix moves by lr · √max(1, out/in) · orthogonalise(ahead(m, g)); anything else by
lr · ahead(m, g) / (√(v / (1 − b₂^k)) + ε). No weight decay.
"""

# torch's fused list operations are public by use, private by name.
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from elf.stages.model.orthogonal import orthogonalise


class Muon(Optimizer):
    """A parameter without a gradient counts as having zero: its momentum and the step go on.

    Matrices are taken as (out, in), nn.Linear's way. `share` (rank, processes) makes a process orthogonalise only
    every processes-th matrix and `exchange` then gets all directions, in order, those of others unset (zero): it
    must fill them in place, e.g. by an all-reduce of the sum. Alone: no exchange.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        lr: float,
        *,
        momentum: float = 0.95,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        share: tuple[int, int] = (0, 1),
        exchange: Callable[[list[Tensor]], None] | None = None,
    ) -> None:
        matrices: list[nn.Parameter] = []
        others: list[nn.Parameter] = []
        for parameter in parameters:
            (matrices if parameter.ndim == 2 else others).append(parameter)
        if share[1] > 1 and exchange is None:
            raise ValueError(
                f"{share[1]} processes share the matrices; an exchange of their directions is needed"
            )
        common = {"momentum": momentum, "betas": betas, "eps": eps, "step": 0}
        groups = [{"params": matrices, "matrices": True}, {"params": others, "matrices": False}]
        self.share, self.exchange = share, exchange
        super().__init__([group for group in groups if group["params"]], {"lr": lr, **common})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        for group in self.param_groups:
            group["step"] += 1
            parameters: list[Tensor] = group["params"]
            gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
            if group["matrices"]:
                self._step_matrices(group, parameters, gradients)
            else:
                self._step_others(group, parameters, gradients)

    def _step_matrices(
        self, group: dict[str, Any], parameters: list[Tensor], gradients: list[Tensor]
    ) -> None:
        """Matrix by matrix, so that no second copy of the network is needed, unless directions are exchanged."""
        rank, processes = self.share
        momenta = self._buffers("momentum", parameters)
        waiting: list[Tensor] = []
        for i, (parameter, gradient, momentum) in enumerate(zip(parameters, gradients, momenta, strict=True)):
            (ahead,) = _look_ahead([momentum], [gradient], group["momentum"], group["step"])
            direction = orthogonalise(ahead) if i % processes == rank else torch.zeros_like(ahead)
            if self.exchange is None:
                _move(parameter, direction, group["lr"])
            else:
                waiting.append(direction)
        if self.exchange is not None:
            self.exchange(waiting)
            for parameter, direction in zip(parameters, waiting, strict=True):
                _move(parameter, direction, group["lr"])

    def _step_others(self, group: dict[str, Any], parameters: list[Tensor], gradients: list[Tensor]) -> None:
        (beta1, beta2), step = group["betas"], group["step"]
        ahead = _look_ahead(self._buffers("momentum", parameters), gradients, beta1, step)
        squares = self._buffers("squares", parameters)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, gradients, gradients, 1.0 - beta2)
        scale = torch._foreach_div(squares, 1.0 - beta2**step)
        torch._foreach_sqrt_(scale)
        torch._foreach_add_(scale, group["eps"])
        torch._foreach_div_(ahead, scale)
        torch._foreach_add_(parameters, ahead, alpha=-group["lr"])

    def _buffers(self, name: str, parameters: list[Tensor]) -> list[Tensor]:
        for parameter in parameters:
            if name not in self.state[parameter]:
                self.state[parameter][name] = torch.zeros_like(parameter)
        return [self.state[parameter][name] for parameter in parameters]


def _move(matrix: Tensor, direction: Tensor, lr: float) -> None:
    rows, columns = matrix.shape
    matrix.add_(direction, alpha=-lr * math.sqrt(max(1.0, rows / columns)))


def _look_ahead(momenta: list[Tensor], gradients: list[Tensor], beta: float, step: int) -> tuple[Tensor, ...]:
    """Update the momenta in place; return the bias-corrected Nesterov step."""
    torch._foreach_lerp_(momenta, gradients, 1.0 - beta)
    ahead = torch._foreach_mul(momenta, beta / (1.0 - beta ** (step + 1)))
    torch._foreach_add_(ahead, gradients, alpha=(1.0 - beta) / (1.0 - beta**step))
    return ahead


def adamw(parameters: Iterable[nn.Parameter], lr: float, *, weight_decay: float = 0.0) -> AdamW:
    """The ablation: AdamW on all parameters, betas 0.9 and 0.95, decoupled decay; it skips absent gradients."""
    return AdamW(parameters, lr=lr, betas=(0.9, 0.95), eps=1e-8, weight_decay=weight_decay)


def set_learning_rate(optimizer: Optimizer, lr: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr


def clip(parameters: Iterable[nn.Parameter], limit: float) -> Tensor:
    """Scale all gradients so that their common L2 norm is at most `limit`; return the norm before. Absent gradients
    stay absent."""
    return nn.utils.clip_grad_norm_(list(parameters), limit)
