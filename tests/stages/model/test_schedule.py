"""Laws, grids and conversions, from their formulas."""

import math
from statistics import NormalDist

import pytest
import torch

from elf.stages.model.config import Prediction, SamplerConfig
from elf.stages.model.schedule import (
    clean_estimate,
    guidance_scale,
    interpolate,
    learning_rate,
    logit_normal,
    quantile_grid,
    time_grid,
    velocity,
)

GENERATOR = torch.Generator().manual_seed(0)
X, NOISE = (torch.randn(4, 5, 3, generator=GENERATOR, dtype=torch.float64) for _ in range(2))
T = torch.tensor([0.1, 0.5, 0.9, 0.94], dtype=torch.float64)


@pytest.mark.parametrize("law", ["log_uniform", "power"])
def test_guidance_ends(law) -> None:
    u = torch.linspace(0, 1, 11, dtype=torch.float64)
    scale = guidance_scale(u, 0.5, 5.0, law=law)
    assert scale[[0, -1]].tolist() == pytest.approx([0.5, 5.0])
    assert (scale.diff() > 0).all()
    assert scale[5] < 2.75  # both favour small scales


def test_guidance_laws_by_hand() -> None:
    half = torch.tensor([0.5], dtype=torch.float64)
    assert float(guidance_scale(half, 0.5, 5.0)) == pytest.approx(math.sqrt(1.5 * 6.0) - 1.0)
    assert float(guidance_scale(half, 0.5, 5.0, law="power")) == pytest.approx(0.5 + 4.5 / 4)


def test_quantile_grid() -> None:
    """Each inner time has its share of the logit-normal below it."""
    grid = quantile_grid(8, -1.5, 0.8)
    assert grid[[0, -1]].tolist() == [0.0, 1.0]
    below = [NormalDist(-1.5, 0.8).cdf(float(torch.logit(t))) for t in grid[1:-1]]
    assert below == pytest.approx([i / 8 for i in range(1, 8)])


def test_time_grid_by_name() -> None:
    normals = torch.tensor([[0.5, -1.0, 0.0]])
    got = time_grid(normals, SamplerConfig(steps=4))
    assert torch.equal(got[0, 1:-1], logit_normal(torch.tensor([-1.0, 0.0, 0.5]), -1.5, 0.8))
    assert time_grid(normals, SamplerConfig(steps=4, grid="uniform")).tolist() == [[0, 0.25, 0.5, 0.75, 1]]


@pytest.mark.parametrize("prediction", ["x", "v", "eps"])
def test_the_true_target_gives_x(prediction: Prediction) -> None:
    """The network that predicts perfectly says x whichever target it was trained on."""
    z = interpolate(X, NOISE, T, 2.0)
    output = {"x": X, "v": X - 2.0 * NOISE, "eps": NOISE}[prediction]
    x = clean_estimate(output, z, T, prediction=prediction, noise_scale=2.0, min_gap=0.05)
    assert torch.allclose(x, X)


def test_noise_prediction_near_noise_is_bounded() -> None:
    z = interpolate(X, NOISE, torch.zeros(4, dtype=torch.float64), 2.0)
    x = clean_estimate(NOISE + 0.01, z, torch.zeros(4), prediction="eps", noise_scale=2.0, min_gap=0.05)
    assert torch.allclose(x, torch.full_like(x, -0.02 / 0.05))


def test_velocity_and_its_clamp() -> None:
    z = interpolate(X, NOISE, T, 2.0)
    assert torch.allclose(velocity(X, z, T, 0.05), X - 2.0 * NOISE)
    late = torch.full((4,), 0.99, dtype=torch.float64)
    z = interpolate(X, NOISE, late, 2.0)
    assert torch.allclose(velocity(X, z, late, 0.05), (X - z) / 0.05)


def test_a_time_per_position() -> None:
    p = torch.rand(4, 5, generator=GENERATOR, dtype=torch.float64)
    z = interpolate(X, NOISE, p, 5.0)
    assert torch.allclose(z[1, 2], p[1, 2] * X[1, 2] + (1 - p[1, 2]) * 5.0 * NOISE[1, 2])


def test_cosine_needs_room() -> None:
    assert learning_rate(0, peak=2.0, warmup=4) == 0.0
    assert learning_rate(7, peak=2.0, warmup=4) == 2.0
    assert learning_rate(99, peak=2.0, warmup=4, total=10, minimum=0.5) == 0.5
    with pytest.raises(ValueError, match="raise total"):
        learning_rate(5, peak=1.0, warmup=4, total=4)
