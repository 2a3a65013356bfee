"""Distillation: the target by its meaning, the rows without a teacher, and what must not happen."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from elf.stages.model.config import DistillConfig, ObjectiveConfig
from elf.stages.model.distill import distill_loss, teach, teacher_rows
from elf.stages.model.draws import DistillDraws, draw_distillation
from elf.stages.model.rows import noisy_state
from elf.stages.model.schedule import spread, velocity
from tests.stages.model.tiny import SHAPE, tiny_batch, tiny_network

ROWS = 10


def given(objective: ObjectiveConfig, **settings: Any) -> DistillDraws:
    distillation = DistillConfig(**({"span": 0.25, "teacher_steps": 3} | settings))
    drawn = draw_distillation(
        1,
        2,
        range(ROWS),
        length=SHAPE["length"],
        width=SHAPE["width"],
        objective=objective,
        distillation=distillation,
    )
    floats = ("t_B", "noise_BLD", "guidance_B", "decode_t_BL", "decode_noise_BLD")
    return replace(drawn, **{name: getattr(drawn, name).double() for name in floats})


@pytest.mark.parametrize("conditional", [False, True])
def test_one_step_to_the_target_lands_where_the_teacher_did(conditional: bool) -> None:
    objective = ObjectiveConfig(decode_share=0.0)
    teacher, batch = tiny_network(), tiny_batch(ROWS, conditional=conditional)
    draws = given(objective)
    state = noisy_state(batch, draws, objective, guided=True)
    visited: list[torch.Tensor] = []
    lesson = teach(teacher, state, draws, objective, trace=lambda z, _: visited.append(z))
    assert len(visited) == 3
    v = velocity(lesson.target_NLD, state.z_BLD, state.t_B, min_gap=1e-9)
    landed = state.z_BLD + spread(draws.end_t_B - draws.t_B, v) * v
    assert torch.allclose(landed, visited[-1])
    assert not torch.allclose(landed, visited[-2])
    mask = state.condition_BL1.expand_as(landed)
    assert torch.allclose(landed[mask], batch.x_BLD[mask])


def test_one_substep_teaches_the_teachers_own_estimate() -> None:
    """With a single sub-step and no coin the target is the teacher's x̂ where 1 − t is not clamped."""
    objective = ObjectiveConfig(decode_share=0.0, self_condition=0.0)
    teacher, batch, draws = tiny_network(), tiny_batch(ROWS), given(objective, teacher_steps=1)
    state = noisy_state(batch, draws, objective, guided=True)
    lesson = teach(teacher, state, draws, objective)
    with torch.no_grad():
        both = torch.cat([state.z_BLD, torch.zeros_like(state.z_BLD)], dim=-1)
        x = teacher.flow(teacher(both, state.t_B, guidance_B=state.guidance_B))
    assert (state.t_B < 0.95).all()
    assert torch.allclose(lesson.target_NLD, x)
    assert not lesson.half_NLD.any()


@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("decoder", ["shared", "separate"])
def test_gradients_are_finite_and_there(share: float, decoder: str) -> None:
    """Decode rows have no span; their 0/0 must not reach anything."""
    objective = ObjectiveConfig(decode_share=share)
    student, teacher = tiny_network(decoder=decoder), tiny_network(seed=1, decoder=decoder)
    result = distill_loss(student, teacher, tiny_batch(ROWS, conditional=True), given(objective), objective)
    result.total.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in student.parameters())
    assert all(p.grad is None for p in teacher.parameters())
    assert int(result.count) == ROWS
    assert torch.allclose(result.total, (result.ce_B + result.l2_B).mean())


def test_the_teacher_sees_denoise_rows_only() -> None:
    objective = ObjectiveConfig(decode_share=0.5)
    student, teacher, draws = tiny_network(), tiny_network(seed=1), given(objective)
    seen: list[int] = []
    teacher.register_forward_hook(lambda _, rows, __: seen.append(len(rows[0])))
    distill_loss(student, teacher, tiny_batch(ROWS), draws, objective)
    denoise_B = ~draws.decode_B
    assert seen == [int((denoise_B & draws.coin_B).sum())] + [int(denoise_B.sum())] * 3
    assert sum(seen) == teacher_rows(draws, objective)


def test_rows_weigh_the_same_whatever_their_length() -> None:
    objective = ObjectiveConfig(decode_share=0.3)
    student, teacher = tiny_network(), tiny_network(seed=1)
    batch, draws = tiny_batch(ROWS, conditional=True), given(objective)
    whole = distill_loss(student, teacher, batch, draws, objective)
    mean = whole.ce_B.sum() / draws.decode_B.sum()
    assert torch.allclose(whole.ce, mean)
    assert torch.allclose(whole.l2, whole.l2_B.sum() / (~draws.decode_B).sum())
    totals = whole.levels_4K.sum(dim=1)
    assert torch.allclose(totals[0] + totals[2], whole.sum.double())
    assert torch.allclose(totals[1] + totals[3], torch.tensor(float(ROWS), dtype=torch.float64))
