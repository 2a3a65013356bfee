"""The exponential moving average of the weights: started at the initial weights, moved after every optimiser step."""

# torch's fused list operations are public by use, private by name.
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false

from collections.abc import Generator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class Ema:
    """e ← decay·e + (1 − decay)·w, by parameter name, on the parameters' device and in their dtype."""

    def __init__(self, network: nn.Module, decay: float = 0.9999) -> None:
        if not 0.0 <= decay < 1.0:
            raise ValueError(f"the EMA's decay is {decay}; it must be at least 0 and below 1")
        self.decay = decay
        self.tensors = {name: p.detach().clone() for name, p in network.named_parameters()}

    @torch.no_grad()
    def update(self, network: nn.Module) -> None:
        weights = [parameter.detach() for parameter in network.parameters()]
        torch._foreach_lerp_(list(self.tensors.values()), weights, 1.0 - self.decay)

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Take saved averages; every name and shape must be there."""
        if self.tensors.keys() != tensors.keys():
            odd = sorted(self.tensors.keys() ^ tensors.keys())
            raise ValueError(
                f"the saved EMA and the network differ in {len(odd)} names, the first is {odd[0]}"
            )
        for name, mine in self.tensors.items():
            if mine.shape != tensors[name].shape:
                raise ValueError(
                    f"the saved EMA of {name} has shape {tuple(tensors[name].shape)}, "
                    f"the network's is {tuple(mine.shape)}"
                )
            mine.copy_(tensors[name])

    @contextmanager
    def applied(self, network: nn.Module) -> Generator[None]:
        """The network with the averaged weights inside, its own again after."""
        self._swap(network)
        try:
            yield
        finally:
            self._swap(network)

    @torch.no_grad()
    def _swap(self, network: nn.Module) -> None:
        for name, parameter in network.named_parameters():
            kept = parameter.detach().clone()
            parameter.copy_(self.tensors[name])
            self.tensors[name].copy_(kept)
