"""From noise to clean latents: ODE and SDE samplers with guidance (paper, Section 3.3 and Algorithms 2 and 6).

One evaluation of the network gives x̂ and v; guidance asks for several at once, which run as ONE batch of variants.
Condition positions of the state, of x̂ and of the self-condition half hold the clean condition throughout.

Shapes: B batch, L positions, D width, S times, K variants of a row.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from elf.stages.model.config import Method, SamplerConfig
from elf.stages.model.draws import SampleDraws
from elf.stages.model.masks import is_condition
from elf.stages.model.network import Network
from elf.stages.model.schedule import clean_estimate, spread, velocity


@dataclass(frozen=True, slots=True)
class Condition:
    """Clean, normalised latents whose first `length_B` positions are the condition; the rest is not looked at."""

    x_BLD: Tensor
    length_B: Tensor


@dataclass(frozen=True, slots=True)
class Step:
    """What one step did: where the network was asked, what it said, where the state went."""

    number: int
    z_eval_BLD: Tensor
    t_eval_B: Tensor
    x_BLD: Tensor
    v_BLD: Tensor
    z_BLD: Tensor


class _Held(NamedTuple):
    """The condition on its positions and zero elsewhere; where it is; whether any row has one."""

    x_BLD: Tensor
    mask_BL1: Tensor
    present: bool

    def restore(self, x_BLD: Tensor) -> Tensor:
        """x with the condition in its place; x itself where there is none."""
        return torch.where(self.mask_BL1, self.x_BLD, x_BLD) if self.present else x_BLD

    def still(self, v_BLD: Tensor) -> Tensor:
        """v, which is 0 where the condition is."""
        return v_BLD.masked_fill(self.mask_BL1, 0.0) if self.present else v_BLD

    def without(self) -> "_Held":
        return self._replace(x_BLD=torch.zeros_like(self.x_BLD))


@dataclass(frozen=True, slots=True)
class Interval:
    """One interval of the time grid as a method finds it: the state z at time t, and x̂ of the interval before.

    `noise` makes the interval's own unit normals, (B, L, D); `last` says that it ends at time 1.
    """

    network: Network
    config: SamplerConfig
    held: _Held
    number: int
    last: bool
    z_BLD: Tensor
    x_BLD: Tensor
    t_B: Tensor
    next_B: Tensor
    noise: Callable[[], Tensor]

    def ask(self, z_BLD: Tensor, previous_BLD: Tensor, t_B: Tensor) -> tuple[Tensor, Tensor]:
        """x̂ and v at (z, t), self-conditioned on the x̂ before; guided, with the condition in its place."""
        return _evaluate(self.network, self.config, z_BLD, previous_BLD, t_B, self.held)


@torch.no_grad()
def sample_latents(
    network: Network,
    draws: SampleDraws,
    config: SamplerConfig,
    *,
    condition: Condition | None = None,
    trace: Callable[[Step], None] | None = None,
) -> Tensor:
    """(B, L, D) latents at time 1. `trace` is called after every step."""
    start_BLD = draws.start_BLD
    times_BS = draws.times_BS.to(start_BLD)
    held = _hold(condition, start_BLD)
    z_BLD = held.restore(config.noise_scale * start_BLD)
    x_BLD = held.x_BLD
    steps = times_BS.shape[1] - 1
    for index in range(steps):
        step = METHODS[config.method](
            Interval(
                network=network,
                config=config,
                held=held,
                number=index,
                last=index == steps - 1,
                z_BLD=z_BLD,
                x_BLD=x_BLD,
                t_B=times_BS[:, index],
                next_B=times_BS[:, index + 1],
                noise=partial(draws.noise, index),
            )
        )
        x_BLD, z_BLD = step.x_BLD, held.restore(step.z_BLD)
        if trace is not None:
            trace(replace(step, z_BLD=z_BLD))
    return z_BLD


def _ode(at: Interval) -> Step:
    """Euler: along the velocity at the interval's start."""
    x_BLD, v_BLD = at.ask(at.z_BLD, at.x_BLD, at.t_B)
    z_BLD = at.z_BLD + spread(at.next_B - at.t_B, at.z_BLD) * v_BLD
    return Step(at.number, at.z_BLD, at.t_B, x_BLD, v_BLD, z_BLD)


def _sde(at: Interval) -> Step:
    """Back to an earlier time by adding noise, then along the velocity there; the last interval is the ODE's."""
    if at.last:
        return _ode(at)
    noisy_BLD, back_B = _noise_up(at.z_BLD, at.t_B, at.next_B, at.noise().to(at.z_BLD), at.config)
    noisy_BLD = at.held.restore(noisy_BLD)
    x_BLD, v_BLD = at.ask(noisy_BLD, at.x_BLD, back_B)
    if at.config.sde_form == "paper":
        v_BLD = velocity(x_BLD, at.z_BLD, at.t_B, at.config.min_gap)
        z_BLD = at.z_BLD + spread(at.next_B - at.t_B, at.z_BLD) * v_BLD
    else:
        z_BLD = noisy_BLD + spread(at.next_B - back_B, at.z_BLD) * v_BLD
    return Step(at.number, noisy_BLD, back_B, x_BLD, v_BLD, z_BLD)


METHODS: Mapping[Method, Callable[[Interval], Step]] = {"ode": _ode, "sde": _sde}
"""What one step of each method is."""


def _hold(condition: Condition | None, like_BLD: Tensor) -> _Held:
    if condition is None:
        mask_BL1 = torch.zeros(like_BLD.shape[:2], dtype=torch.bool, device=like_BLD.device)[:, :, None]
        return _Held(torch.zeros_like(like_BLD), mask_BL1, present=False)
    mask_BL1 = is_condition(condition.length_B, like_BLD.shape[1]).to(like_BLD.device)[:, :, None]
    x_BLD = condition.x_BLD.to(like_BLD)
    held_BLD = torch.where(mask_BL1, x_BLD, torch.zeros_like(x_BLD))
    return _Held(held_BLD, mask_BL1, present=bool(mask_BL1.any()))


def _noise_up(
    z_BLD: Tensor, t_B: Tensor, next_B: Tensor, noise_BLD: Tensor, config: SamplerConfig
) -> tuple[Tensor, Tensor]:
    """Go back from t to t_b = αt, α = clip(1 − γ(t' − t), 0, 1), by adding noise.

    "released" and "paper" add (1 − α)·s·ε. "variance_matched" adds what makes the noise in z exactly that of time
    t_b, s·(1 − αt): the square root of the difference of the variances.
    """
    alpha_B = (1.0 - config.gamma * (next_B - t_B)).clamp(0.0, 1.0)
    amount_B = 1.0 - alpha_B
    if config.sde_form == "variance_matched":
        wanted_B, left_B = 1.0 - alpha_B * t_B, alpha_B * (1.0 - t_B)
        amount_B = (wanted_B.square() - left_B.square()).clamp(min=0.0).sqrt()
    noisy_BLD = spread(alpha_B, z_BLD) * z_BLD + spread(amount_B, z_BLD) * config.noise_scale * noise_BLD
    return noisy_BLD, alpha_B * t_B


def _evaluate(
    network: Network, config: SamplerConfig, z_BLD: Tensor, previous_BLD: Tensor, t_B: Tensor, held: _Held
) -> tuple[Tensor, Tensor]:
    """x̂ and v at (z, t), guided; on condition positions x̂ is the condition and v is 0."""
    weight = config.input_guidance
    views = [(z_BLD, previous_BLD, held)]
    if weight != 1.0 and held.present:
        bare = held.without()
        views.append((bare.restore(z_BLD), bare.restore(previous_BLD), bare))
    estimates = _self_guided(network, config, views, t_B)
    x_BLD, v_BLD = estimates[0]
    if len(estimates) == 2:
        bare_x_BLD, bare_v_BLD = estimates[1]
        x_BLD = held.restore(bare_x_BLD + weight * (x_BLD - bare_x_BLD))
        v_BLD = held.still(bare_v_BLD + weight * (v_BLD - bare_v_BLD))
    return x_BLD, v_BLD


_View = tuple[Tensor, Tensor, _Held]


def _self_guided(
    network: Network, config: SamplerConfig, views: list[_View], t_B: Tensor
) -> list[tuple[Tensor, Tensor]]:
    """x̂ and v of every view of the batch, all in one call of the network.

    A network with guidance tokens is told ω; one without takes x̂ = x̂_0 + s(x̂_sc − x̂_0) over its estimates with the
    zero and the full self-condition half, of which s = 0 and s = 1 need only one.
    """
    scale = 1.0 if network.config.guided or not config.self_condition else config.self_condition_guidance
    full = [(z, previous, held) for z, previous, held in views]
    zero = [(z, held.x_BLD, held) for z, _, held in views]
    if scale == 1.0:
        return _call(network, config, full, t_B)
    if scale == 0.0:
        return _call(network, config, zero, t_B)
    both = _call(network, config, full + zero, t_B)
    return [
        (x_0 + scale * (x - x_0), v_0 + scale * (v - v_0))
        for (x, v), (x_0, v_0) in zip(both[: len(views)], both[len(views) :], strict=True)
    ]


def _call(
    network: Network, config: SamplerConfig, views: list[_View], t_B: Tensor
) -> list[tuple[Tensor, Tensor]]:
    """One batch of K·B rows: the network's x̂ and v for every view, its condition restored."""
    count = len(views)
    z_KBLD = torch.cat([z for z, _, _ in views])
    held_KBLD = torch.cat([held.x_BLD for _, _, held in views])
    held = _Held(held_KBLD, views[0][2].mask_BL1.repeat(count, 1, 1), present=views[0][2].present)
    t_KB = t_B.repeat(count)
    given = (
        torch.cat([z_KBLD, torch.cat([half for _, half, _ in views])], dim=-1)
        if config.self_condition
        else z_KBLD
    )
    hidden = network(given, t_KB, guidance_B=guidance_rows(network, config, t_KB))
    x_KBLD = clean_estimate(
        network.flow(hidden),
        z_KBLD,
        t_KB,
        prediction=network.config.prediction,
        noise_scale=config.noise_scale,
        min_gap=config.min_gap,
    )
    v_KBLD = held.still(velocity(x_KBLD, z_KBLD, t_KB, config.min_gap))
    return list(zip(held.restore(x_KBLD).chunk(count), v_KBLD.chunk(count), strict=True))


def guidance_rows(network: Network, config: SamplerConfig, like_B: Tensor) -> Tensor | None:
    """ω for every row, or None for a network that takes none."""
    return torch.full_like(like_B, config.guidance) if network.config.guided else None
