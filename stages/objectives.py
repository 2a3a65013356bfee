"""The losses as modules, so that their forward is what the processes of a run synchronise."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from elf.stages.latents import RawBatch
from elf.stages.model.config import ObjectiveConfig
from elf.stages.model.distill import distill_loss, teacher_rows
from elf.stages.model.draws import DistillDraws, Draws
from elf.stages.model.masks import loss_mask
from elf.stages.model.network import Network
from elf.stages.model.objective import Batch, Loss, loss
from elf.stages.model.speeding import few_rows
from elf.stages.tally import Tally, Unit


class Goal(nn.Module, ABC):
    """What a network is trained towards. ``forward`` maps a batch and its draws to a Loss; ``few_shapes``: the passes
    without gradient take few numbers of rows, for a compiled network."""

    unit: Unit = "positions"
    tally: type[Tally] = Tally

    def __init__(self, config: ObjectiveConfig, precision: str, *, few_shapes: bool = False) -> None:
        super().__init__()
        self.config, self.precision, self.few_shapes = config, precision, few_shapes

    def forward(self, batch: Batch, draws: Any) -> Loss:
        """The loss of a batch under its draws."""
        with torch.autocast(batch.ids_BL.device.type, torch.bfloat16, enabled=self.precision == "bf16"):
            return self.measure(batch, draws, few_rows(len(batch.ids_BL)) if self.few_shapes else 1)

    @abstractmethod
    def measure(self, batch: Batch, draws: Any, row_multiple: int) -> Loss:
        """As ``forward``, in whatever precision is on."""

    @property
    def all_used(self) -> bool:
        """Whether every step gives every parameter a gradient."""
        return True

    def units(self, raw: RawBatch) -> Tensor:
        """(B,) how many of what the loss is a mean over each row has."""
        length = raw.ids_BL.shape[1]
        return loss_mask(raw.condition_length_B, raw.length_B, length, self.config.padding).sum(dim=1)

    def beside(self, draws: Any) -> Mapping[str, int]:
        """What else a step's line of metrics counts."""
        return {}


class Objective(Goal):
    """Denoising and decoding (paper, Section 3)."""

    def __init__(
        self, network: Network, config: ObjectiveConfig, precision: str, *, few_shapes: bool = False
    ) -> None:
        super().__init__(config, precision, few_shapes=few_shapes)
        self.network = network

    def measure(self, batch: Batch, draws: Draws, row_multiple: int) -> Loss:
        """As ``forward``, in whatever precision is on. Where the network has a table, the latents are its rows."""
        if self.network.config.table:
            batch = replace(batch, x_BLD=self.network.embed(batch.ids_BL))
        return loss(self.network, batch, draws, self.config, row_multiple=row_multiple)

    @property
    def all_used(self) -> bool:
        """Whether every step gives every parameter a gradient."""
        return self.config.self_condition > 0


class Distillation(Objective):
    """One step of the student against several of a frozen teacher (paper, ELF+PD)."""

    unit: Unit = "rows"

    def __init__(
        self,
        student: Network,
        teacher: Network,
        config: ObjectiveConfig,
        precision: str,
        *,
        few_shapes: bool = False,
    ) -> None:
        super().__init__(student, config, precision, few_shapes=few_shapes)
        # No submodule: what is frozen is not exchanged between processes.
        self._teacher = (teacher,)

    def measure(self, batch: Batch, draws: Draws, row_multiple: int) -> Loss:
        """As ``forward``, in whatever precision is on."""
        assert isinstance(draws, DistillDraws)
        (teacher,) = self._teacher
        return distill_loss(self.network, teacher, batch, draws, self.config, row_multiple=row_multiple)

    @property
    def all_used(self) -> bool:
        """True: the student has a self-condition half, if an empty one, whatever it was trained with."""
        return True

    def units(self, raw: RawBatch) -> Tensor:
        """(B,) ones: every row counts alike."""
        return torch.ones_like(raw.length_B)

    def beside(self, draws: Draws) -> Mapping[str, int]:
        """``teacher_rows``: rows that the teacher was called with."""
        assert isinstance(draws, DistillDraws)
        return {"teacher_rows": teacher_rows(draws, self.config)}
