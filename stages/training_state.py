"""Everything that a step changes: weights, optimiser, averaged weights; taken apart for a checkpoint and put back.

Optimiser numbers are saved as ``<parameter>.<kind>`` tensors, so that they belong to parameters by name, whatever
their order; the count of steps is plain data.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from elf.cache.manifest import JSON
from elf.pipeline.errors import Failed, Misconfigured
from elf.stages.checkpoint import Checkpoint
from elf.stages.model.ema import Ema
from elf.stages.model.network import Network
from elf.stages.model.optim import Muon, adamw, set_learning_rate
from elf.stages.model.token_network import TokenNetwork
from elf.stages.team import Team
from elf.stages.train_settings import Optim
from elf.stages.trained import load_weights


class TrainingState:
    """The network, its optimiser and its average, after ``step`` optimiser steps."""

    def __init__(self, network: Network | TokenNetwork, optim: Optim, team: Team) -> None:
        self.network = network
        self.step = 0
        self.ema = Ema(network, optim.ema)
        self.optimizer = make_optimizer(network, optim, team)
        self._kind = optim.name

    def advance(self, lr: float) -> None:
        """One optimiser step with the gradients that are there, at learning rate ``lr``."""
        set_learning_rate(self.optimizer, lr)
        self.optimizer.step()
        self.ema.update(self.network)
        self.step += 1

    def checkpoint(self, state: Mapping[str, JSON]) -> Checkpoint:
        """What is saved; ``state`` is put beside it."""
        optimizer = {
            f"{name}.{kind}": tensor
            for name, parameter in self.network.named_parameters()
            for kind, tensor in self.optimizer.state[parameter].items()
        }
        return Checkpoint(
            step=self.step,
            model=self.network.state_dict(),
            ema=self.ema.tensors,
            optimizer=optimizer,
            state={**state, "optimizer": self._kind},
        )

    def load(self, saved: Checkpoint, *, source: Path) -> None:
        """Go on from a checkpoint; strict. Raises Failed naming what is missing or differs."""
        if saved.state.get("optimizer") != self._kind:
            raise Failed(
                f"The checkpoint {source} is of optimiser {saved.state.get('optimizer')}, the run's is {self._kind}. "
                "Train with that optimiser, or delete the checkpoints to begin again."
            )
        load_weights(self.network, saved.model, source=source)
        try:
            self.ema.load(saved.ema)
            load_optimizer(self.network, self.optimizer, saved.optimizer, step=saved.step)
        except ValueError as error:
            raise Failed(
                f"The checkpoint {source} cannot be gone on from: {error}. Train with the settings it was saved with, "
                "or delete the checkpoints to begin again."
            ) from error
        self.step = saved.step


def make_optimizer(network: nn.Module, optim: Optim, team: Team) -> Optimizer:
    """The optimiser of the settings; its learning rate is set at every step."""
    if optim.name == "adamw":
        return adamw(network.parameters(), optim.lr, weight_decay=optim.weight_decay)
    if optim.weight_decay:
        raise Misconfigured(
            f"optim.weight_decay is {optim.weight_decay}, but muon decays no weights; set it to 0, or optim.name to "
            "adamw."
        )
    exchange = team.add_up if team.size > 1 else None
    return Muon(network.parameters(), optim.lr, share=(team.rank, team.size), exchange=exchange)


@torch.no_grad()
def load_optimizer(
    network: nn.Module, optimizer: Optimizer, tensors: Mapping[str, Tensor], *, step: int
) -> None:
    """Put saved numbers back. Raises ValueError where a name or shape is not the optimiser's."""
    parameters = dict(network.named_parameters())
    found: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        owner, _, kind = name.rpartition(".")
        if owner not in parameters:
            raise ValueError(f"its optimiser holds {name}, and there is no parameter {owner}")
        found.setdefault(owner, {})[kind] = tensor
    for name, parameter in parameters.items():
        mine = found.get(name, {})
        if mine.keys() != kinds_of(optimizer, parameter) and (mine or isinstance(optimizer, Muon)):
            raise ValueError(
                f"its optimiser has {', '.join(sorted(mine)) or 'nothing'} for {name}, where "
                f"{', '.join(sorted(kinds_of(optimizer, parameter)))} belong"
            )
        for kind, tensor in mine.items():
            if tensor.ndim and tensor.shape != parameter.shape:
                raise ValueError(
                    f"its optimiser's {name}.{kind} is {tuple(tensor.shape)}, not {tuple(parameter.shape)}"
                )
            device = parameter.device if tensor.ndim else tensor.device
            optimizer.state[parameter][kind] = tensor.to(device, copy=True)
    if isinstance(optimizer, Muon):
        for group in optimizer.param_groups:
            group["step"] = step


def kinds_of(optimizer: Optimizer, parameter: Tensor) -> set[str]:
    """Which numbers an optimiser keeps for a parameter."""
    if not isinstance(optimizer, Muon):
        return {"step", "exp_avg", "exp_avg_sq"}
    return {"momentum"} if parameter.ndim == 2 else {"momentum", "squares"}
