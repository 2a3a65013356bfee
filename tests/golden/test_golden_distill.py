"""Distillation: the teacher's walk, the target, every part of the loss and the student's gradients."""

from typing import Any

import torch
from torch import Tensor

from elf.stages.model.config import ObjectiveConfig
from elf.stages.model.distill import distill_loss, teach
from elf.stages.model.draws import DistillDraws, student_span
from elf.stages.model.rows import noisy_state
from elf.stages.model.schedule import times
from tests.golden.reading import (
    Goldens,
    check_gradients,
    close,
    objective_config,
    read_batch,
    read_draws,
    tolerance,
)

GROUP = "distill"


def read_distill_draws(
    drawn: dict[str, Tensor], config: dict[str, Any], objective: ObjectiveConfig
) -> DistillDraws:
    """The recorded draws; the teacher's are listed row by row."""
    place_B = drawn["t_s_draw"]
    rows = len(place_B)
    inner_BI = drawn.get("teacher_t_draw", place_B.new_zeros(0)).view(rows, config["pd_teacher_steps"] - 1)
    mean, std = objective.time_mean, objective.time_std
    start_B, end_B, teacher_BS = student_span(
        times(place_B, place_B, config["pd_student_schedule"], mean=mean, std=std),
        times(inner_BI, inner_BI, config["pd_teacher_schedule"], mean=mean, std=std),
        span=config["pd_step_size"],
    )
    coin_B = drawn.get("self_cond_coin", torch.zeros(rows)) > 0.5
    return DistillDraws.of(read_draws(drawn, objective, None, t_B=start_B, coin_B=coin_B), end_B, teacher_BS)


def test_distillation(case: str, dtype: torch.dtype, goldens: Goldens) -> None:
    record = goldens.index["cases"][case]
    objective, limit = objective_config(record["config"]), tolerance(dtype)
    batch = read_batch(goldens.inputs(record["file"], "in/", dtype))
    draws = read_distill_draws(goldens.inputs(record["file"], "draw/", dtype), record["config"], objective)
    student = goldens.network(record["student"], record["model"], dtype)
    teacher = goldens.network(record["teacher"], record["model"], dtype)
    expected = goldens.expected(record, dtype)
    if expected:
        check_lesson(teacher, batch, draws, objective, expected, limit)
    result = distill_loss(student, teacher, batch, draws, objective)
    if expected:
        decode_B = draws.decode_B
        close("loss", result.total, expected["loss"], limit)
        close("ce per row", result.ce_B, expected["ce_per_example"] * decode_B, limit)
        close("l2 per row", result.l2_B, expected["pd_per_example"] * ~decode_B, limit)
        close("per row", result.ce_B + result.l2_B, expected["per_example_loss"], limit)
    metrics = record["metrics_f64"]
    for name, got in (("loss", result.total), ("ce_loss", result.ce), ("l2_loss", result.l2)):
        close(name, got, torch.tensor(metrics[name], dtype=torch.float64), limit)
    result.total.backward()
    check_gradients(student, record, goldens, dtype)
    assert all(parameter.grad is None for parameter in teacher.parameters())


def check_lesson(
    teacher: Any,
    batch: Any,
    draws: DistillDraws,
    objective: ObjectiveConfig,
    expected: dict[str, Tensor],
    limit: float,
) -> None:
    """Values on denoise rows; what decode rows would have is not looked at."""
    rows = ~draws.decode_B
    state = noisy_state(batch, draws, objective, guided=teacher.config.guided)
    walk = [(state.z_BLD[rows], draws.t_B[rows])]
    lesson = teach(teacher, state, draws, objective, trace=lambda z, t: walk.append((z, t)))
    close("x_combined", state.z_BLD, expected["x_combined"], limit)
    close("guidance", draws.guidance_B, expected["w"], limit)
    close("t_s", draws.t_B[rows], expected["t_s"][rows], limit)
    close("t_t", draws.end_t_B[rows], expected["t_t"][rows], limit)
    if "sub_step_times" in expected:
        close("teacher times", draws.teacher_t_BS[rows], expected["sub_step_times"][rows], limit)
    close("half", lesson.half_NLD, expected["sc_half"][rows], limit)
    if "teacher_z_end" in expected:
        close("walk's end", walk[-1][0], expected["teacher_z_end"][rows], limit)
    close("walk z", torch.stack([z for z, _ in walk[:-1]]), expected["teacher_z_substeps"][:, rows], limit)
    close("walk t", torch.stack([t for _, t in walk[:-1]]), expected["teacher_t_substeps"][:, rows], limit)
    close("target", lesson.target_NLD, expected["target_pd"][rows], limit)
