"""Every random number, as an argument: a pure function of (seed, step, row) or (seed, sample).

A row's numbers do not depend on which rows share its batch, on how many processes there are or on what was
drawn before, so that any step can be repeated anywhere. Small numbers are drawn on the CPU (the same on every
machine), noise on the device that uses it (the same per kind of device).

torch's CPU generator keeps 32 bits of its seed: among N rows about N²/2³³ pairs share their numbers, which no
average notices. Shapes: B batch, L positions, D width, S time points.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from elf.stages.model.config import DistillConfig, ObjectiveConfig, SamplerConfig
from elf.stages.model.schedule import guidance_scale, logit_normal, time_grid, times

GRID_ROWS = 16


@dataclass(frozen=True, slots=True)
class Draws:
    """What one training step draws. `decode_B`, `coin_B`, `drop_B` are bool and stay on the CPU, where the
    objective chooses rows without waiting for the device; the rest lies on the device.

    `decode_noise_BLD` may be the same tensor as `noise_BLD`: a row uses only one of the two.
    `dropout_seed` seeds torch's generator where the network has dropout.
    """

    decode_B: Tensor
    t_B: Tensor
    noise_BLD: Tensor
    guidance_B: Tensor
    coin_B: Tensor
    decode_t_BL: Tensor
    decode_noise_BLD: Tensor
    drop_B: Tensor
    dropout_seed: int = 0

    def take(self, chosen: slice) -> "Draws":
        """Those of some of the rows. Fewer than all get a dropout seed of their own."""
        noise_BLD = self.noise_BLD[chosen]
        shared = self.decode_noise_BLD is self.noise_BLD
        part = chosen.indices(len(self.t_B))
        whole = len(range(*part)) == len(self.t_B)
        return Draws(
            decode_B=self.decode_B[chosen],
            t_B=self.t_B[chosen],
            noise_BLD=noise_BLD,
            guidance_B=self.guidance_B[chosen],
            coin_B=self.coin_B[chosen],
            decode_t_BL=self.decode_t_BL[chosen],
            decode_noise_BLD=noise_BLD if shared else self.decode_noise_BLD[chosen],
            drop_B=self.drop_B[chosen],
            dropout_seed=self.dropout_seed if whole else seed_of("piece", self.dropout_seed, *part),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DistillDraws(Draws):
    """What one distillation step draws: as in training, `t_B` being where the student's step starts, `end_t_B` where
    it ends, and the teacher's times from one to the other (not looked at on decode rows)."""

    end_t_B: Tensor
    teacher_t_BS: Tensor

    @staticmethod
    def of(student: Draws, end_t_B: Tensor, teacher_t_BS: Tensor) -> "DistillDraws":
        """The draws of a training step, with these besides."""
        drawn = {field.name: getattr(student, field.name) for field in fields(Draws)}
        return DistillDraws(**drawn, end_t_B=end_t_B, teacher_t_BS=teacher_t_BS)

    def take(self, chosen: slice) -> "DistillDraws":
        """Those of some of the rows."""
        return DistillDraws.of(Draws.take(self, chosen), self.end_t_B[chosen], self.teacher_t_BS[chosen])


@dataclass(frozen=True, slots=True)
class SampleDraws:
    """What a batch of samples draws: unit start noise, every row's time grid (steps + 1 numbers from 0 to 1),
    and the unit noise of an SDE step, made when asked so that no step's noise waits in memory."""

    start_BLD: Tensor
    times_BS: Tensor
    noise: Callable[[int], Tensor]


def seed_of(*parts: int | str) -> int:
    """63 bits from the parts, the same everywhere and for ever. (1, "2") and ("1", 2) differ."""
    text = json.dumps(parts, separators=(",", ":"), ensure_ascii=True)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def draw(
    seed: int,
    step: int,
    rows: Sequence[int],
    *,
    length: int,
    width: int,
    objective: ObjectiveConfig,
    device: torch.device | str = "cpu",
) -> Draws:
    """The numbers of one training step for the given rows (their numbers in the data set)."""

    def law(uniform_U: Tensor, normal_N: Tensor) -> tuple[Tensor, ...]:
        mean, std = objective.time_mean, objective.time_std
        return (
            uniform_U,
            times(normal_N[0], uniform_U[1], objective.time_schedule, mean=mean, std=std),
            guidance_scale(
                uniform_U[2], objective.guidance_low, objective.guidance_high, law=objective.guidance_law
            ),
            logit_normal(normal_N[1:], objective.decode_time_mean, objective.decode_time_std),
        )

    seeds = [seed_of("train", seed, step, row) for row in rows]
    uniform_BU, t_B, guidance_B, decode_t_BL = row_numbers(seeds, 5, 1 + length, law)
    noise_BLD = _noise([seed_of("noise", seed, step, row) for row in rows], length, width, device)
    return Draws(
        decode_B=chosen(uniform_BU[:, 0], objective.decode_share),
        t_B=t_B.to(device),
        noise_BLD=noise_BLD,
        guidance_B=guidance_B.to(device),
        coin_B=chosen(uniform_BU[:, 3], objective.self_condition),
        decode_t_BL=decode_t_BL.to(device),
        decode_noise_BLD=noise_BLD,
        drop_B=chosen(uniform_BU[:, 4], objective.condition_dropout),
        dropout_seed=seed_of("dropout", seed, step, *rows),
    )


def draw_drops(seed: int, step: int, rows: Sequence[int], *, objective: ObjectiveConfig) -> Tensor:
    """`drop_B` of `draw`, alone: which row's condition is dropped, known long before its step."""
    if objective.condition_dropout == 0:
        return torch.zeros(len(rows), dtype=torch.bool)
    seeds = [seed_of("train", seed, step, row) for row in rows]
    (uniform_BU,) = row_numbers(seeds, 5, 0, lambda uniform_U, _: (uniform_U,))
    return chosen(uniform_BU[:, 4], objective.condition_dropout)


def draw_distillation(
    seed: int,
    step: int,
    rows: Sequence[int],
    *,
    length: int,
    width: int,
    objective: ObjectiveConfig,
    distillation: DistillConfig,
    device: torch.device | str = "cpu",
) -> DistillDraws:
    """The numbers of one distillation step: a span of the path per row and the teacher's times inside it."""
    mean, std = objective.time_mean, objective.time_std

    def law(uniform_U: Tensor, normal_N: Tensor) -> tuple[Tensor, ...]:
        return (
            times(normal_N[0], uniform_U[0], distillation.student_schedule, mean=mean, std=std),
            times(normal_N[1:], uniform_U[1:], distillation.teacher_schedule, mean=mean, std=std),
        )

    seeds = [seed_of("teacher", seed, step, row) for row in rows]
    steps = distillation.teacher_steps
    place_B, place_BI = row_numbers(seeds, steps, steps, law)
    start_B, end_B, teacher_BS = student_span(place_B, place_BI, span=distillation.span)
    student = draw(seed, step, rows, length=length, width=width, objective=objective, device=device)
    student = replace(student, t_B=start_B.to(device))
    return DistillDraws.of(student, end_B.to(device), teacher_BS.to(device))


def draw_samples(
    seed: int,
    samples: Sequence[int],
    *,
    length: int,
    width: int,
    config: SamplerConfig,
    device: torch.device | str = "cpu",
) -> SampleDraws:
    """The numbers of the given samples (their indices). Sixteen neighbours, 0–15, 16–31, …, share one time
    grid, whatever batch they are computed in."""
    starts = [seed_of("start", seed, sample) for sample in samples]
    grids = [seed_of("grid", seed, sample // GRID_ROWS) for sample in samples]
    (times_BS,) = row_numbers(grids, 0, config.steps - 1, lambda _, normals: (time_grid(normals, config),))

    def noise(step: int) -> Tensor:
        return _noise([seed_of("step", seed, sample, step) for sample in samples], length, width, device)

    return SampleDraws(
        start_BLD=_noise(starts, length, width, device),
        times_BS=times_BS.to(device),
        noise=noise,
    )


def chosen(uniform_B: Tensor, share: float) -> Tensor:
    """(B,) bool: the rows that uniform numbers in [0, 1) choose where `share` of all rows is to be chosen."""
    return uniform_B < share


def student_span(place_B: Tensor, place_BI: Tensor, *, span: float) -> tuple[Tensor, Tensor, Tensor]:
    """Start (B,) and end (B,) of the student's step and the teacher's times (B, S) from where each lies between
    0 and 1: start = place·(1 − span), end = start + span, the teacher's in order between them.

    A span of 1 leaves the start 1e-6 of freedom, as the released programs do.
    """
    start_B1 = (place_B * max(1.0 - span, 1e-6))[:, None]
    end_B1 = start_B1 + span
    inner_BI = start_B1 + place_BI.sort(dim=1).values * (end_B1 - start_B1)
    return start_B1[:, 0], end_B1[:, 0], torch.cat([start_B1, inner_BI, end_B1], dim=1)


def row_numbers(
    seeds: Sequence[int], uniforms: int, normals: int, law: Callable[[Tensor, Tensor], tuple[Tensor, ...]]
) -> tuple[Tensor, ...]:
    """On the CPU: each row's (uniforms,) and (normals,) from its own seed, what the law makes of them, stacked.

    The law sees one row at a time, since a vectorised function rounds by where a number stands in its batch.
    """
    generator = torch.Generator()
    rows: list[tuple[Tensor, ...]] = []
    for seed in seeds:
        generator.manual_seed(seed)
        uniform_U = torch.rand(uniforms, generator=generator)
        rows.append(law(uniform_U, torch.randn(normals, generator=generator)))
    return tuple(torch.stack(column) for column in zip(*rows, strict=True))


def _noise(seeds: Sequence[int], length: int, width: int, device: torch.device | str) -> Tensor:
    """(B, L, D) unit normals on the device, each row from its own seed."""
    noise_BLD = torch.empty(len(seeds), length, width, device=device)
    generator = torch.Generator(device)
    for row, seed in enumerate(seeds):
        generator.manual_seed(seed)
        noise_BLD[row].normal_(generator=generator)
    return noise_BLD
