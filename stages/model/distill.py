"""Progressive distillation (paper, ELF+PD): the student's one step lands where the teacher's many small ones do.

The teacher walks from the student's start to its end in ODE sub-steps, its own x̂ chained as self-condition. The
target is the x̂ that takes the student there in a single step. Decode rows train as always, without a teacher.
Shapes: B batch, L positions, D width, N denoise rows, S teacher times.
"""

from collections.abc import Callable
from contextlib import nullcontext
from typing import NamedTuple

import torch
from torch import Tensor

from elf.stages.model.config import ObjectiveConfig
from elf.stages.model.draws import DistillDraws
from elf.stages.model.levels import tally_levels
from elf.stages.model.masks import loss_mask
from elf.stages.model.network import Network
from elf.stages.model.objective import (
    decode_error,
    estimate_clean,
    pad_rows,
    rows_where,
    seeded,
    unused_parameters,
    zero_sink,
)
from elf.stages.model.rows import Batch, Loss, State, check_ids, noisy_state
from elf.stages.model.schedule import spread, velocity


class Lesson(NamedTuple):
    """What the teacher gives the denoise rows: the student's target and the self-condition half to start from."""

    target_NLD: Tensor
    half_NLD: Tensor


def distill_loss(
    student: Network,
    teacher: Network,
    batch: Batch,
    draws: DistillDraws,
    objective: ObjectiveConfig,
    *,
    row_multiple: int = 1,
) -> Loss:
    """Each row's mean error over its counted positions, then the mean over rows: `sum` and `count` are of rows.
    `row_multiple` pads the teacher's rows to a multiple, as `elf.stages.model.objective.loss` has it.

    Network inputs are 2D wide even where the objective has no self-condition (the half then knows the condition
    only). Unlike in training, the half of decode rows holds the condition too.
    """
    check_ids(batch.ids_BL, student.config.vocabulary)
    state = noisy_state(batch, draws, objective, guided=student.config.guided)
    device, decode_B = state.z_BLD.device, draws.decode_B
    rows = rows_where(~decode_B, device)
    counted_BL = loss_mask(batch.condition_length_B, batch.length_B, state.z_BLD.shape[1], objective.padding)
    counted = counted_BL.to(state.z_BLD)
    share_BL = counted / counted.sum(dim=1, keepdim=True).clamp(min=1.0)
    half_BLD, lesson = state.held_BLD, None
    if len(rows):
        lesson = teach(teacher, state, draws, objective, row_multiple=row_multiple)
        half_BLD = half_BLD.index_copy(0, rows, lesson.half_NLD)
    given_BLC = torch.cat([state.z_BLD, half_BLD], dim=-1)
    dropping = student.training and student.config.dropout > 0.0
    with seeded(draws.dropout_seed, device) if dropping else nullcontext():
        hidden = student(given_BLC, state.t_B, guidance_B=state.guidance_B, mode_B=state.mode_B)
    total, ce_BL = decode_error(student, batch, hidden, counted_BL, decode_B, share_BL=share_BL)
    l2_B = torch.zeros_like(ce_BL[:, 0])
    if lesson is not None:
        x_NLD = estimate_clean(student, objective, hidden.take(rows), state.z_BLD[rows], state.t_B[rows])
        error_NL = (x_NLD - lesson.target_NLD).square().mean(dim=-1)
        error_N = (error_NL * share_BL[rows]).sum(dim=1)
        total, l2_B = total + error_N.sum(), l2_B.index_copy(0, rows, error_N.detach())
    unused = unused_parameters(student, decode=bool(decode_B.any()), denoise=len(rows) > 0)
    ones_B, decode_B = torch.ones(len(l2_B), dtype=torch.int64, device=device), decode_B.to(device)
    decode_share_BL = share_BL * decode_B[:, None]
    levels_4K = tally_levels(ce_BL, decode_share_BL, draws.decode_t_BL, l2_B, ones_B * ~decode_B, draws.t_B)
    return Loss(
        sum=total + zero_sink(unused),
        count=ones_B.sum(),
        ce_B=ce_BL.sum(dim=1),
        l2_B=l2_B,
        count_B=ones_B,
        decode_B=decode_B,
        levels_4K=levels_4K,
    )


@torch.no_grad()
def teach(
    teacher: Network,
    state: State,
    draws: DistillDraws,
    objective: ObjectiveConfig,
    *,
    row_multiple: int = 1,
    trace: Callable[[Tensor, Tensor], None] | None = None,
) -> Lesson:
    """Walk the denoise rows from start to end. Rows without a coin start from the half that knows the condition
    only; rows with one from the teacher's estimate for that half. `trace` is given z and t after every
    sub-step.

    The step that ends where the teacher ends: x̃ = z_s + (1 − s)/(e − s)·(z_e − z_s), undefined on decode rows,
    whose s and e are one.
    """
    device = state.z_BLD.device
    rows = rows_where(~draws.decode_B, device)
    coins = rows_where(_coins(draws, objective)[~draws.decode_B], device)
    start_NLD, half_NLD = state.z_BLD[rows], state.held_BLD[rows]
    times_NS = draws.teacher_t_BS[rows].to(start_NLD)

    def estimate(which: Tensor, z_MLD: Tensor, half_MLD: Tensor, t_M: Tensor) -> Tensor:
        """x̂ of those of the denoise rows that `which` numbers, the condition restored."""
        padded = pad_rows(torch.arange(len(which), device=device), row_multiple)
        chosen, z_PLD, t_P = rows[which[padded]], z_MLD[padded], t_M[padded]
        guidance_P = None if state.guidance_B is None else state.guidance_B[chosen]
        hidden = teacher(torch.cat([z_PLD, half_MLD[padded]], dim=-1), t_P, guidance_B=guidance_P)
        x_PLD = estimate_clean(teacher, objective, hidden, z_PLD, t_P)
        return torch.where(state.condition_BL1[chosen], state.x_BLD[chosen], x_PLD)[: len(which)]

    if len(coins):
        first_MLD = estimate(coins, start_NLD[coins], half_NLD[coins], times_NS[coins, 0])
        half_NLD = half_NLD.index_copy(0, coins, first_MLD)
    every, z_NLD, x_NLD = torch.arange(len(rows), device=device), start_NLD, half_NLD
    for t_N, next_N in zip(times_NS.T[:-1], times_NS.T[1:], strict=True):
        x_NLD = estimate(every, z_NLD, x_NLD, t_N)
        # On condition positions x̂ is z, the velocity 0: the condition stays.
        z_NLD = z_NLD + spread(next_N - t_N, z_NLD) * velocity(x_NLD, z_NLD, t_N, objective.min_gap)
        if trace is not None:
            trace(z_NLD, next_N)
    start_N, end_N = times_NS[:, 0], times_NS[:, -1]
    stretch_N = (1.0 - start_N) / (end_N - start_N)
    return Lesson(start_NLD + spread(stretch_N, z_NLD) * (z_NLD - start_NLD), half_NLD)


def teacher_rows(draws: DistillDraws, objective: ObjectiveConfig) -> int:
    """Rows that `teach` calls the teacher with: each denoise row at every sub-step, and once more for its coin."""
    denoise = int((~draws.decode_B).sum())
    return denoise * (draws.teacher_t_BS.shape[1] - 1) + int(_coins(draws, objective).sum())


def _coins(draws: DistillDraws, objective: ObjectiveConfig) -> Tensor:
    """(B,) bool, on the CPU: denoise rows whose self-condition half is the teacher's estimate."""
    return draws.coin_B & ~draws.decode_B & (objective.self_condition > 0.0)
