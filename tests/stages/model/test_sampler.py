"""The samplers' rules that recorded trajectories do not pin, from the formulas."""

from dataclasses import replace
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from elf.stages.model.config import Method, SamplerConfig
from elf.stages.model.draws import SampleDraws, draw_samples
from elf.stages.model.network import Network
from elf.stages.model.sampler import METHODS, Condition, Step, sample_latents
from tests.stages.model.tiny import SHAPE, tiny_network

SDE = SamplerConfig(method="sde", steps=5, gamma=1.5)
PLACES = {"length": SHAPE["length"], "width": SHAPE["width"]}


def draws_for(config: SamplerConfig, samples: range = range(3)) -> SampleDraws:
    drawn = draw_samples(2, samples, config=config, **PLACES)
    return SampleDraws(drawn.start_BLD.double(), drawn.times_BS.double(), lambda i: drawn.noise(i).double())


def a_condition(rows: int = 3) -> Condition:
    x = torch.randn(rows, SHAPE["length"], SHAPE["width"], generator=torch.Generator().manual_seed(8))
    return Condition(x.double(), torch.tensor([2, 0, 3])[:rows])


def walk(
    network: Network, config: SamplerConfig, draws: SampleDraws, **given: Any
) -> tuple[Tensor, list[Step]]:
    steps: list[Step] = []
    return sample_latents(network, draws, config, trace=steps.append, **given), steps


def estimate(network: Network, z: Tensor, half: Tensor, t: Tensor, config: SamplerConfig) -> Tensor:
    with torch.no_grad():
        guidance = torch.full_like(t, config.guidance)
        return network.flow(network(torch.cat([z, half], dim=-1), t, guidance_B=guidance))


def test_every_method_that_may_be_asked_for_is_there() -> None:
    assert set(METHODS) == set(get_args(Method))


@pytest.mark.parametrize("form", ["released", "paper", "variance_matched"])
def test_sde_forms_by_hand(form: Any) -> None:
    """Every step but the last, which is ODE, from the formula of its form."""
    network, config = tiny_network(), replace(SDE, sde_form=form, gamma=3.0)
    draws = draws_for(config)
    z, half = 2.0 * draws.start_BLD, torch.zeros_like(draws.start_BLD)
    times = draws.times_BS[:, :, None, None]
    for i in range(config.steps):
        t, after = times[:, i], times[:, i + 1]
        z_b, t_b = z, t
        if i < config.steps - 1:
            alpha = (1 - 3.0 * (after - t)).clamp(0, 1)
            amount = 1 - alpha
            if form == "variance_matched":
                amount = ((1 - alpha * t) ** 2 - (alpha * (1 - t)) ** 2).sqrt()
            z_b, t_b = alpha * z + amount * 2.0 * draws.noise(i), alpha * t
        half = estimate(network, z_b, half, t_b.flatten(), config)
        if form == "paper" and i < config.steps - 1:
            z = z + (after - t) * (half - z) / (1 - t).clamp(min=0.05)
        else:
            z = z_b + (after - t_b) * (half - z_b) / (1 - t_b).clamp(min=0.05)
    got, steps = walk(network, config, draws)
    assert torch.allclose(got, z)
    assert len(steps) == config.steps
    assert torch.equal(steps[-1].t_eval_B, draws.times_BS[:, -2])


def test_variance_matched_noise_is_that_of_its_time() -> None:
    """From z of pure noise at time t, the state's noise has the scale s·(1 − t_b)."""
    config = replace(SDE, sde_form="variance_matched", gamma=2.0, steps=2)
    shape = (1, 400, SHAPE["width"])
    noise = [torch.randn(shape, generator=torch.Generator().manual_seed(s)).double() for s in range(2)]
    times = torch.tensor([[0.3, 0.5, 1.0]], dtype=torch.float64)
    # the sampler starts from 2·start: scaled so that it stands at time 0.3 around data at zero
    draws = SampleDraws(noise[0] * 0.7, times, lambda _: noise[1])
    _, steps = walk(tiny_network(length=400), config, draws)
    t_b = 0.3 * (1 - 2.0 * 0.2)
    assert float(steps[0].t_eval_B) == pytest.approx(t_b)
    assert float(steps[0].z_eval_BLD.std()) == pytest.approx(2.0 * (1 - t_b), rel=0.03)


def test_late_times_are_clamped() -> None:
    network, config = tiny_network(), SamplerConfig(steps=2)
    draws = draws_for(config, range(2))
    times = torch.tensor([[0.0, 0.99, 1.0]], dtype=torch.float64).expand(2, -1)
    _, steps = walk(network, config, replace(draws, times_BS=times))
    last = steps[1]
    assert torch.allclose(last.v_BLD, (last.x_BLD - last.z_eval_BLD) / 0.05)
    assert torch.allclose(last.z_BLD, last.z_eval_BLD + 0.01 * last.v_BLD)


def test_no_noise_is_the_ode() -> None:
    draws = draws_for(SDE)
    ode, _ = walk(tiny_network(), SamplerConfig(steps=5), draws)
    sde, _ = walk(tiny_network(), replace(SDE, gamma=0.0), draws)
    assert torch.allclose(ode, sde)


def test_rows_do_not_know_each_other() -> None:
    """Other neighbours, another place in the batch: the same latents, up to rounding."""
    network, config = tiny_network(), replace(SDE, input_guidance=2.0)
    condition = a_condition()
    together, _ = walk(network, config, draws_for(config), condition=condition)
    alone, _ = walk(
        network,
        config,
        draws_for(config, range(2, 3)),
        condition=Condition(condition.x_BLD[2:], condition.length_B[2:]),
    )
    assert torch.allclose(together[2:], alone)


@pytest.mark.parametrize("weight", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("config", [SamplerConfig(steps=4), SDE, replace(SDE, sde_form="paper")])
def test_condition_is_held(config: SamplerConfig, weight: float) -> None:
    condition = a_condition()
    mask = torch.arange(SHAPE["length"])[None] < condition.length_B[:, None]
    z, steps = walk(
        tiny_network(), replace(config, input_guidance=weight), draws_for(config), condition=condition
    )
    for held in [z, *(getattr(s, name) for s in steps for name in ("z_eval_BLD", "x_BLD", "z_BLD"))]:
        assert torch.equal(held[mask], condition.x_BLD[mask])
    if config.sde_form == "released":
        assert all(not step.v_BLD[mask].any() for step in steps)


def test_what_lies_behind_the_condition_is_not_looked_at() -> None:
    condition = a_condition()
    other = condition.x_BLD.clone()
    mask = torch.arange(SHAPE["length"])[None] >= condition.length_B[:, None]
    other[mask] = 99.0
    config = SamplerConfig(steps=3, input_guidance=2.0)
    one, _ = walk(tiny_network(), config, draws_for(config), condition=condition)
    two, _ = walk(tiny_network(), config, draws_for(config), condition=Condition(other, condition.length_B))
    assert torch.equal(one, two)


def test_input_guidance_by_hand() -> None:
    network, config = tiny_network(), SamplerConfig(steps=1, input_guidance=3.0)
    draws, condition = draws_for(config), a_condition()
    mask = (torch.arange(SHAPE["length"])[None] < condition.length_B[:, None])[..., None]
    noise, t = 2.0 * draws.start_BLD, torch.zeros(3, dtype=torch.float64)
    held = torch.where(mask, condition.x_BLD, 0.0)
    x_c = estimate(network, torch.where(mask, held, noise), held, t, config)
    x_u = estimate(network, torch.where(mask, 0.0, noise), torch.zeros_like(held), t, config)
    expected = torch.where(mask, condition.x_BLD, x_u + 3.0 * (x_c - x_u))
    got, steps = walk(network, config, draws, condition=condition)
    assert torch.allclose(steps[0].x_BLD, expected)
    assert torch.allclose(got, expected)


@pytest.mark.parametrize(
    ("changed", "conditional", "rows"),
    [
        ({}, True, 3),
        ({"input_guidance": 2.0}, True, 6),
        ({"input_guidance": 2.0}, False, 3),
        ({"self_condition_guidance": 3.0}, True, 6),
        ({"self_condition_guidance": 0.0}, True, 3),
        ({"self_condition_guidance": 3.0, "input_guidance": 2.0}, True, 12),
        ({"self_condition": False, "self_condition_guidance": 3.0}, True, 3),
    ],
)
def test_one_batch_per_evaluation(changed: dict[str, Any], conditional: bool, rows: int) -> None:
    network = tiny_network(guidance_tokens=0)
    config = replace(SamplerConfig(steps=4), **changed)
    seen: list[tuple[int, ...]] = []
    network.register_forward_hook(lambda _, given, __: seen.append(tuple(given[0].shape)))
    walk(network, config, draws_for(config), condition=a_condition() if conditional else None)
    channels = SHAPE["width"] * (2 if config.self_condition else 1)
    assert seen == [(rows, SHAPE["length"], channels)] * 4


def test_guidance_reaches_the_network() -> None:
    config = SamplerConfig(steps=3)
    one, _ = walk(tiny_network(), config, draws_for(config))
    other, _ = walk(tiny_network(), replace(config, guidance=0.5), draws_for(config))
    assert not torch.allclose(one, other)


@pytest.mark.parametrize("prediction", ["v", "eps"])
def test_other_predictions_reach_the_end(prediction: str) -> None:
    """A v network's x̂ is z + (1 − t)·v, so that its ODE steps add the predicted velocity itself."""
    network, config = tiny_network(prediction=prediction), SamplerConfig(steps=3, grid="uniform")
    draws = draws_for(config)
    z, steps = walk(network, config, draws)
    assert z.isfinite().all()
    if prediction == "v":
        said = estimate(network, steps[0].z_eval_BLD, torch.zeros_like(z), steps[0].t_eval_B, config)
        assert torch.allclose(steps[0].v_BLD, said)
