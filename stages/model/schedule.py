"""Times, guidance scales, step grids and the straight path between noise and data (paper, Section 3).

Every function turns draws that come from outside into the numbers the objective and the samplers use.
Time is 0 at noise and 1 at data. Shapes: B batch, L positions, D width, N grid points.
"""

import math
from statistics import NormalDist

import torch
from torch import Tensor

from elf.stages.model.config import GuidanceLaw, Prediction, SamplerConfig, TimeSchedule


def logit_normal(normal: Tensor, mean: float, std: float) -> Tensor:
    """σ(mean + std·normal)."""
    return torch.sigmoid(normal * std + mean)


def guidance_scale(uniform: Tensor, low: float, high: float, *, law: GuidanceLaw = "log_uniform") -> Tensor:
    """ω in [low, high] from uniforms, small scales more often.

    log_uniform, the released programs' law: 1 + ω is log-uniform. power, our reading of the paper's
    "power-biased": ω = low + (high − low)·u².
    """
    if law == "power":
        return low + (high - low) * uniform.square()
    return (1.0 + low) * ((1.0 + high) / (1.0 + low)) ** uniform - 1.0


def times(normal: Tensor, uniform: Tensor, schedule: TimeSchedule, *, mean: float, std: float) -> Tensor:
    """Times by the named schedule, from whichever of the two draws it uses."""
    return uniform if schedule == "uniform" else logit_normal(normal, mean, std)


def grid_from(inner: Tensor) -> Tensor:
    """N−1 inner times in any order, (…, N−1), to a grid (…, N+1) from exactly 0 to exactly 1."""
    ordered = inner.sort(dim=-1).values
    edge = ordered.new_zeros((*ordered.shape[:-1], 1))
    return torch.cat([edge, ordered, edge + 1.0], dim=-1)


def uniform_grid(steps: int) -> Tensor:
    """steps + 1 equally spaced times, float64."""
    return torch.linspace(0.0, 1.0, steps + 1, dtype=torch.float64)


def quantile_grid(steps: int, mean: float, std: float) -> Tensor:
    """The logit-normal's equally spaced quantiles from 0 to 1, without randomness: float64, (steps + 1,)."""
    normals = [NormalDist().inv_cdf(i / steps) for i in range(1, steps)]
    return grid_from(logit_normal(torch.tensor(normals, dtype=torch.float64), mean, std))


def time_grid(normals: Tensor, config: SamplerConfig) -> Tensor:
    """(…, steps + 1) times of a sampler; `normals` (…, steps − 1) are used by the logit_normal grid only."""
    if config.grid == "logit_normal":
        return grid_from(logit_normal(normals, config.time_mean, config.time_std))
    if config.grid == "uniform":
        fixed = uniform_grid(config.steps)
    else:
        fixed = quantile_grid(config.steps, config.time_mean, config.time_std)
    return fixed.to(normals).expand(*normals.shape[:-1], -1)


def interpolate(x_BLD: Tensor, noise_BLD: Tensor, t: Tensor, noise_scale: float) -> Tensor:
    """z = t·x + (1 − t)·s·ε for t of shape (B,) or (B, L)."""
    t = spread(t, x_BLD)
    return t * x_BLD + (1.0 - t) * noise_scale * noise_BLD


def velocity(x_BLD: Tensor, z_BLD: Tensor, t_B: Tensor, min_gap: float) -> Tensor:
    """v = (x − z) / max(1 − t, min_gap): the speed that reaches x at time 1."""
    return (x_BLD - z_BLD) / (1.0 - spread(t_B, x_BLD)).clamp(min=min_gap)


def clean_estimate(
    output_BLD: Tensor,
    z_BLD: Tensor,
    t_B: Tensor,
    *,
    prediction: Prediction,
    noise_scale: float,
    min_gap: float,
) -> Tensor:
    """x̂ from what the network predicts: x̂ itself, the velocity x − s·ε, or the unit noise ε."""
    if prediction == "x":
        return output_BLD
    t = spread(t_B, z_BLD)
    if prediction == "v":
        return z_BLD + (1.0 - t) * output_BLD
    return (z_BLD - (1.0 - t) * noise_scale * output_BLD) / t.clamp(min=min_gap)


def learning_rate(
    step: int,
    *,
    peak: float,
    warmup: int = 0,
    total: int | None = None,
    minimum: float = 0.0,
) -> float:
    """lr of optimiser step `step`, counted from 0: linear from 0 over `warmup` steps, then constant, or with
    `total` given a cosine down to `minimum` at step `total`."""
    if step < warmup:
        return peak * step / warmup
    if total is None:
        return peak
    if total <= warmup:
        raise ValueError(f"a cosine over {total} steps ends inside its warm-up of {warmup}: raise total")
    progress = min((step - warmup) / (total - warmup), 1.0)
    return minimum + (peak - minimum) * (1.0 + math.cos(math.pi * progress)) / 2.0


def spread(t: Tensor, like_BLD: Tensor) -> Tensor:
    """(B,) or (B, L) with trailing axes of size 1, to broadcast against (B, L, D)."""
    return t.reshape(t.shape + (1,) * (like_BLD.dim() - t.dim())).to(like_BLD.dtype)
