"""What a training run learns, ready before its first step; the loop in ``elf.stages.training`` is the same for all."""

from dataclasses import dataclass
from typing import Literal

from elf.stages.feeding import Recipe
from elf.stages.heldout import Heldout
from elf.stages.latents import LatentRows
from elf.stages.model.network import Network
from elf.stages.model.token_network import TokenNetwork
from elf.stages.objectives import Goal
from elf.stages.steps import Length
from elf.stages.token_models import TokenCard
from elf.stages.trained import Card


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """``network`` as it is before step 0, on the device of its team, and ``objective`` over it."""

    name: Literal["train", "distill"]
    """The section of the configuration that it is set by."""
    card: Card | TokenCard
    network: Network | TokenNetwork
    objective: Goal
    recipe: Recipe
    length: Length
    row_flops: float
    """Operations of a row of a step, on average over the draws, optimiser apart."""
    heldout: Heldout | None
    shown: LatentRows
    """Rows whose conditions the texts sampled on the way have."""
