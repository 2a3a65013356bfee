"""The count on paper against torch's count of what ran."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from elf.stages.model.config import SIZES, ModelConfig, ObjectiveConfig
from elf.stages.model.flops import forward_flops, step_flops
from elf.stages.model.objective import loss
from tests.stages.model.tiny import SHAPE, tiny_batch, tiny_draws, tiny_network

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
