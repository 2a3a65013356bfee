"""The count on paper against torch's count of what ran."""

from functools import partial
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from elf.stages.model.config import SIZES, ModelConfig, ObjectiveConfig, SamplerConfig
from elf.stages.model.decoding import decode
from elf.stages.model.draws import draw_samples
from elf.stages.model.flops import (
    count_weights,
    forward_flops,
    matrices,
    muon_flops,
    sample_flops,
    step_flops,
    token_flops,
    token_matrices,
    token_sample_flops,
)
from elf.stages.model.masked import unmask
from elf.stages.model.network import Network, count_parameters
from elf.stages.model.objective import loss
from elf.stages.model.optim import Muon
from elf.stages.model.sampler import sample_latents
from elf.stages.model.token_config import TokenSamplerConfig
from elf.stages.model.token_draws import draw_choices
from tests.stages.model.tiny import SHAPE, tiny_batch, tiny_draws, tiny_network
from tests.stages.model.tiny_tokens import tiny_ids, tiny_tokens

ROWS = 40


def counted(run) -> int:
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


@pytest.mark.parametrize("bottleneck", [5, None])
def test_forward(bottleneck: int | None) -> None:
    network = tiny_network(bottleneck=bottleneck)
    x = tiny_batch(2).x_BLD
    embedders = 2 * 2 * 2 * (256 * 16 + 16 * 16)

    def run() -> None:
        ones = torch.ones(2, dtype=x.dtype)
        hidden = network(torch.cat([x, x], dim=-1), ones, guidance_B=ones)
        network.flow(hidden)
        network.logits(hidden.h_BLH)

    flops = forward_flops(network.config, SHAPE["length"])
    assert counted(run) == 2 * (flops.forward + flops.decode_head) + embedders


def test_step() -> None:
    """Within a few percent: the first projections need no gradient of their input, the rows are drawn."""
    objective = ObjectiveConfig(decode_share=0.5)
    network = tiny_network(hidden=64)
    batch, draws = tiny_batch(ROWS), tiny_draws(ROWS, objective)
    self_conditioned = (draws.coin_B & ~draws.decode_B).float().mean()
    share = ObjectiveConfig(
        decode_share=float(draws.decode_B.float().mean()),
        self_condition=float(self_conditioned / (~draws.decode_B).float().mean()),
    )
    ran = counted(lambda: loss(network, batch, draws, objective).total.backward())
    embedders = ROWS * 3 * 2 * 2 * (256 * 64 + 64 * 64)
    assert ran - embedders == pytest.approx(
        ROWS * step_flops(network.config, share, SHAPE["length"]), rel=0.04
    )


def test_published_order() -> None:
    """ELF-B at 1024 positions: 213 MFLOP a token forward, 39 of them attention, 34 the decode head."""
    depth, hidden, heads = SIZES["B"]
    config = ModelConfig(width=512, vocabulary=32100, length=1024, hidden=hidden, depth=depth, heads=heads)
    flops = forward_flops(config, 1024)
    per_token = [round(f / 1024 / 1e6) for f in (flops.forward, flops.attention, flops.decode_head)]
    assert per_token == [213, 39, 34]


@pytest.mark.parametrize(
    ("shape", "guidance"),
    [({}, 3.0), ({"guidance_tokens": 0}, 3.0), ({"guidance_tokens": 0}, 1.0)],
    ids=["guided", "two variants", "one"],
)
def test_sampling(shape: dict[str, Any], guidance: float) -> None:
    network = tiny_network(hidden=64, **shape).float()
    config = SamplerConfig(steps=3, guidance=guidance, self_condition_guidance=guidance)
    length, width = SHAPE["length"], SHAPE["width"]
    draws = draw_samples(0, range(4), length=length, width=width, config=config, device="cpu")
    ran = counted(lambda: decode(network, sample_latents(network, draws, config), config))
    assert ran == pytest.approx(
        4 * sample_flops(network.config, config, length, conditioned=False), rel=0.15
    )  # the embedders count here, as rows are so short


def test_guidance_on_the_condition_runs_the_network_twice() -> None:
    config, length = tiny_network().config, SHAPE["length"]
    plain, guided = (
        sample_flops(config, SamplerConfig(steps=8, input_guidance=w), length, conditioned=True)
        for w in (1, 2)
    )
    assert guided - plain == pytest.approx(8 * forward_flops(config, length).forward)
    unconditional = SamplerConfig(steps=8, input_guidance=2.0)
    assert sample_flops(config, unconditional, length, conditioned=False) == plain


@pytest.mark.parametrize(
    "shape", [{}, {"bottleneck": None}, {"conditioning": "adaln"}, {"decoder": "separate"}], ids=str
)
def test_matrices_are_the_networks(shape: dict[str, Any]) -> None:
    network = tiny_network(**shape)
    there = sorted(tuple(each.shape) for each in network.parameters() if each.ndim == 2)
    assert sorted(matrices(network.config)) == there
    assert count_weights(network.config) == sum(rows * columns for rows, columns in there)


def test_weights_of_elf_b() -> None:
    config = ModelConfig(width=512, vocabulary=32100, length=8, hidden=768, depth=12, heads=12)
    with torch.device("meta"):
        assert count_parameters(Network(config)) == pytest.approx(count_weights(config), rel=0.01)


@pytest.mark.parametrize("hidden", [64, 256, 512])
def test_muon(hidden: int) -> None:
    network = tiny_network(hidden=hidden, guidance_tokens=0).float()
    for parameter in network.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer = Muon(network.parameters(), 1e-3)
    assert counted(optimizer.step) == muon_flops(network.config)


@pytest.mark.parametrize("method", ["autoregressive", "masked"])
def test_a_model_of_tokens(method: Any) -> None:
    """Torch's plain attention compares all pairs, a causal one needs half of them."""
    network, ids = tiny_tokens(method), tiny_ids(3)
    config, one = network.config, token_flops(network.config, 7)

    def run() -> None:
        network.logits(network(network.embed(ids)))

    pairs = 4.0 * config.depth * 7 * 7 * config.hidden
    assert counted(run) == 3 * (one.trunk + pairs + one.decode_head)
    assert one.attention == (pairs * 4 / 7 if config.causal else pairs)


@pytest.mark.parametrize("method", ["autoregressive", "masked"])
def test_weights_of_a_model_of_tokens(method: Any) -> None:
    network = tiny_tokens(method)
    shapes = [tuple(each.shape) for each in network.parameters() if each.ndim == 2]
    assert sorted(shapes) == sorted(token_matrices(network.config))
    beside = sum(each.numel() for each in network.parameters() if each.ndim == 1) + network.special.numel()
    assert count_weights(network.config) == count_parameters(network) - beside


def test_a_masked_model_is_asked_as_often_as_something_changes() -> None:
    network, rows = tiny_tokens("masked").eval(), 400
    for steps in (1, 4, 40):
        sampler = TokenSamplerConfig("masked", steps=steps)
        when, choice = (draw_choices(0, range(rows), 7, what=what) for what in ("mask", "token"))
        flops = counted(partial(unmask, network, when, choice, sampler))
        assert flops == pytest.approx(rows * token_sample_flops(network.config, sampler, 7), rel=0.03)
        conditions = {
            "condition_BC": torch.ones(rows, 4, dtype=torch.int64),
            "condition_length_B": torch.full((rows,), 4),
        }
        flops = counted(partial(unmask, network, when, choice, sampler, **conditions))
        wanted = token_sample_flops(network.config, sampler, 7, given=4)
        assert flops == pytest.approx(rows * wanted, rel=0.03), "a condition is never unmasked"
