"""What goes into a loss and what comes out: a batch of rows, what the network is shown of it, sums and counts.

Shapes: B batch, L positions, D width. The row choices of the draws and the lengths are best left on the CPU: then
nothing here waits for the device.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from elf.stages.model.config import ObjectiveConfig
from elf.stages.model.draws import Draws
from elf.stages.model.masks import is_condition
from elf.stages.model.schedule import interpolate


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of clean latents, already normalised, and the head's ids. Dropped rows (`draws.drop_B`) bring latents
    that were encoded with that mask. Unconditional rows: condition length 0, length L."""

    x_BLD: Tensor
    ids_BL: Tensor
    condition_length_B: Tensor
    length_B: Tensor

    @staticmethod
    def unconditional(x_BLD: Tensor, ids_BL: Tensor) -> "Batch":
        rows, length = ids_BL.shape
        zero_B = torch.zeros(rows, dtype=torch.int64)
        return Batch(x_BLD, ids_BL, zero_B, zero_B + length)


@dataclass(frozen=True, slots=True)
class Loss:
    """Sums and counts, so that a data-parallel caller can divide by the count of all processes.

    `sum` carries the gradient: Σ cross-entropy over decode rows + Σ squared error over denoise rows. The rest has
    none: `ce_B` and `l2_B` per row (0 on rows of the other kind), `count_B` positions that count in each row, and
    `levels_4K` by noise level, as `elf.stages.model.levels.tally_levels` has it.
    """

    sum: Tensor
    count: Tensor
    ce_B: Tensor
    l2_B: Tensor
    count_B: Tensor
    decode_B: Tensor
    levels_4K: Tensor

    @property
    def total(self) -> Tensor:
        """Σ / Σ mask over all rows of this batch."""
        return self.sum / self.count.clamp(min=1)

    @property
    def ce(self) -> Tensor:
        """Mean cross-entropy over the decode rows' positions; 0 if there are none."""
        return self.ce_B.sum() / (self.count_B * self.decode_B).sum().clamp(min=1)

    @property
    def l2(self) -> Tensor:
        """Mean squared error over the denoise rows' positions; 0 if there are none."""
        return self.l2_B.sum() / (self.count_B * ~self.decode_B).sum().clamp(min=1)


@dataclass(frozen=True, slots=True)
class State:
    """What the network is shown: `z` and `t` by each row's branch, x with dropped conditions zeroed, and `held`,
    the self-condition half that knows only the condition (zero elsewhere)."""

    z_BLD: Tensor
    t_B: Tensor
    x_BLD: Tensor
    held_BLD: Tensor
    condition_BL1: Tensor
    mode_B: Tensor
    guidance_B: Tensor | None


def noisy_state(batch: Batch, draws: Draws, objective: ObjectiveConfig, *, guided: bool) -> State:
    """Corrupt each row as its branch asks.

    Denoise rows: one t per row, the condition kept. Decode rows: one p per position and t = 1 for the network;
    the condition is corrupted too unless the objective keeps it.
    """
    x_BLD, device, dtype = batch.x_BLD, batch.x_BLD.device, batch.x_BLD.dtype
    decode_B = draws.decode_B.to(device)
    condition_BL1 = is_condition(batch.condition_length_B, x_BLD.shape[1]).to(device)[:, :, None]
    x_BLD = x_BLD.masked_fill(condition_BL1 & draws.drop_B.to(device)[:, None, None], 0.0)
    noise_BLD = draws.noise_BLD
    if draws.decode_noise_BLD is not noise_BLD:
        noise_BLD = torch.where(decode_B[:, None, None], draws.decode_noise_BLD, noise_BLD)
    t_BL = torch.where(decode_B[:, None], draws.decode_t_BL, draws.t_B[:, None]).to(dtype)
    scale_B = decode_B * (objective.decode_noise_scale - objective.noise_scale) + objective.noise_scale
    z_BLD = interpolate(x_BLD, noise_BLD * scale_B.to(dtype)[:, None, None], t_BL, 1.0)
    kept_BL1 = condition_BL1
    if objective.decode_condition == "corrupted":
        kept_BL1 = condition_BL1 & ~decode_B[:, None, None]
    return State(
        z_BLD=torch.where(kept_BL1, x_BLD, z_BLD),
        t_B=draws.t_B.to(dtype).masked_fill(decode_B, 1.0),
        x_BLD=x_BLD,
        held_BLD=x_BLD * condition_BL1,
        condition_BL1=condition_BL1,
        mode_B=decode_B.to(dtype),
        guidance_B=draws.guidance_B.to(dtype) if guided else None,
    )


def check_ids(ids_BL: Tensor, vocabulary: int) -> None:
    """Refuse an id the head has no entry for. Ids on an accelerator are checked where they are read."""
    if ids_BL.device.type == "cpu" and ids_BL.numel():
        low, high = int(ids_BL.min()), int(ids_BL.max())
        if low < 0 or high >= vocabulary:
            raise ValueError(
                f"token ids run from {low} to {high}, but the decode head has {vocabulary} entries; "
                f"ids must lie in 0…{vocabulary - 1}: use the tokenizer the model was trained with"
            )
