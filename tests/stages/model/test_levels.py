"""Losses by noise level: every position in one bin, that of its own time."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from elf.stages.model.config import LEVELS, ObjectiveConfig
from elf.stages.model.levels import level_of, sum_by_level
from elf.stages.model.masks import loss_mask
from elf.stages.model.objective import loss
from elf.stages.model.rows import noisy_state
from tests.stages.model.tiny import tiny_batch, tiny_draws, tiny_network

ROWS = 40
OBJECTIVE = ObjectiveConfig(decode_share=0.4, self_condition=0.0, padding="pad", time_schedule="uniform")


@given(t=st.floats(0, 1, width=32))
def test_a_bin_is_a_tenth_and_the_last_holds_one(t: float) -> None:
    level = int(level_of(torch.tensor(t)))
    assert 0 <= level < LEVELS
    assert level / LEVELS - 1e-6 <= t <= (level + 1) / LEVELS + 1e-6


def test_sums_are_of_the_bins_and_wide_enough() -> None:
    t = torch.tensor([[0.05, 0.15], [0.99, 1.0]])
    ones = sum_by_level(torch.ones(2, 2, dtype=torch.bool), t)
    assert ones.tolist() == [1, 1] + 7 * [0] + [2]
    assert ones.dtype == torch.float64
    assert int(sum_by_level(torch.full((2, 2), 2**25 + 1), t)[0]) == 2**25 + 1


def test_each_branch_is_told_by_its_own_times() -> None:
    """Against sums over positions, one by one; without self-condition the passes are plain to write down."""
    network, batch = tiny_network(), tiny_batch(ROWS, conditional=True)
    draws = tiny_draws(ROWS, OBJECTIVE)
    found = loss(network, batch, draws, OBJECTIVE).levels_4K
    state = noisy_state(batch, draws, OBJECTIVE, guided=True)
    with torch.no_grad():
        hidden = network(state.z_BLD, state.t_B, guidance_B=state.guidance_B, mode_B=state.mode_B)
        logits, x = network.logits(hidden.h_BLH), network.flow(hidden)
    counted = loss_mask(batch.condition_length_B, batch.length_B, x.shape[1], "pad")
    wanted = torch.zeros(4, LEVELS, dtype=torch.float64)
    for row in range(ROWS):
        gap = max(1 - float(draws.t_B[row]), OBJECTIVE.min_gap)
        for position in counted[row].nonzero()[:, 0].tolist():
            if draws.decode_B[row]:
                level = int(draws.decode_t_BL[row, position] * LEVELS)
                wanted[0, level] += F.cross_entropy(logits[row, position], batch.ids_BL[row, position])
                wanted[1, level] += 1
            else:
                level = int(draws.t_B[row] * LEVELS)
                wanted[2, level] += ((x[row, position] - batch.x_BLD[row, position]) / gap).square().mean()
                wanted[3, level] += 1
    assert torch.equal(found[1::2], wanted[1::2])
    torch.testing.assert_close(found, wanted)
    used = (found[1::2] > 0).sum(dim=1)
    assert used[0] >= 4
    assert used[1] >= 8, "many bins, so that a wrong one would show"


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_bins_add_up_to_the_loss(share: float) -> None:
    objective = ObjectiveConfig(decode_share=share)
    found = loss(tiny_network(), tiny_batch(4), tiny_draws(4, objective), objective)
    totals = found.levels_4K.sum(dim=1)
    torch.testing.assert_close(totals[0] + totals[2], found.sum.detach())
    assert totals[1] + totals[3] == found.count
    assert (totals[0] == 0) == (share == 0.0)
