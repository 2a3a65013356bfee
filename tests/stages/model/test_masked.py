"""The masked baseline: the bound by hand and in the mean, and its sampler."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from elf.stages.model.choosing import choose
from elf.stages.model.masked import hidden_tokens, masked_loss, unmask
from elf.stages.model.masks import is_condition, loss_mask
from elf.stages.model.token_config import TokenSamplerConfig
from elf.stages.model.token_draws import SMALLEST_SHARE, MaskDraws, draw_choices, draw_masks
from tests.stages.model.tiny_tokens import (
    OBJECTIVE,
    Told,
    everything,
    mask_draws,
    no_condition,
    tiny_ids,
    tiny_tokens,
)


def drawn(share: list[float], place: list[list[float]]) -> MaskDraws:
    """These numbers."""
    return MaskDraws(
        drop_B=torch.zeros(len(share), dtype=torch.bool),
        share_B=torch.tensor(share, dtype=torch.float64),
        place_BL=torch.tensor(place, dtype=torch.float64),
    )


def twins(x_BLH: Tensor) -> Tensor:
    """Knows that both tokens of a row are the same, and nothing else: log-probabilities of two tokens."""
    other_BLH = x_BLH.flip(1)
    known = other_BLH[..., :2].clamp(min=1e-300).log()
    return torch.where(other_BLH[..., 2:] > 0, math.log(1 / 2), known)


def test_of_a_network_that_knows_nothing_each_masked_token_adds_its_logarithm_over_the_share() -> None:
    network, ids, draws = tiny_tokens("masked"), tiny_ids(5), mask_draws(5)
    with torch.no_grad():
        network.table.zero_()
        network.bias.zero_()
    found = masked_loss(network, ids, no_condition(ids), everything(ids), draws)
    masked = (draws.place_BL < draws.share_B[:, None]).sum(dim=1)
    assert masked.unique().numel() > 1
    assert torch.allclose(found.ce_B, (masked / draws.share_B * math.log(23)).double())


def test_in_the_mean_that_is_the_logarithm_of_the_vocabulary() -> None:
    network, ids = tiny_tokens("masked"), tiny_ids(4000)
    with torch.no_grad():
        network.table.zero_()
        network.bias.zero_()
        found = masked_loss(network, ids, no_condition(ids), everything(ids), mask_draws(4000))
    assert found.total.item() == pytest.approx(math.log(23), rel=0.05)


def test_two_tokens_by_hand() -> None:
    """Both masked: each is one of two, ln 2 over the share. One masked: it is known."""
    network: Any = Told(2, twins)
    ids = torch.tensor([[0, 0], [1, 1], [1, 1]])
    draws = drawn([0.8, 0.5, 0.4], [[0.1, 0.2], [0.1, 0.9], [0.7, 0.8]])
    found = masked_loss(network, ids, no_condition(ids), everything(ids), draws)
    assert found.ce_B.tolist() == pytest.approx([2 * math.log(2) / 0.8, 0.0, 0.0])


def test_the_bound_of_a_network_that_knows_all_there_is_to_know_is_the_nll() -> None:
    """Two tokens that are the same have ln 2 nats together. With a share s of masks, 1/s of the expected nats is
    1/s · s² · 2 ln 2; from 0 to 1 that integrates to ln 2."""
    network: Any = Told(2, twins)
    points = 4000
    shares = [(place + 0.5) / points for place in range(points)]
    total = 0.0
    for first in (0, 1):  # masked or not, weighted by how likely that is
        for second in (0, 1):
            chance = torch.tensor(
                [(s if first else 1 - s) * (s if second else 1 - s) for s in shares], dtype=torch.float64
            )
            place = [[0.0 if first else 1.0, 0.0 if second else 1.0]] * points
            ids = torch.ones(points, 2, dtype=torch.int64)
            found = masked_loss(network, ids, no_condition(ids), everything(ids), drawn(shares, place))
            total += float((found.ce_B * chance).mean())
    assert total == pytest.approx(math.log(2), rel=1e-6)


def test_tokens_that_are_there_are_not_asked_for_and_masks_are_no_tokens() -> None:
    """Substitution: what is not masked adds nothing, and the head has no entry for a mask."""
    network, ids = tiny_tokens("masked"), tiny_ids(2)
    draws = drawn([0.5, 0.5], [[0.9] * 7, [0.9] * 6 + [0.1]])
    found = masked_loss(network, ids, no_condition(ids), everything(ids), draws)
    masked = draws.place_BL < 0.5
    logits = network.logits(network(hidden_tokens(network, ids, masked)))
    assert logits.shape[-1] == 23
    expected = -2 * torch.log_softmax(logits[1, 6], dim=-1)[ids[1, 6]]
    assert found.ce_B.tolist() == pytest.approx([0.0, expected.item()])
    nothing = masked_loss(network, ids[:1], no_condition(ids[:1]), everything(ids[:1]), draws.take(slice(1)))
    gradients = torch.autograd.grad(nothing.sum, list(network.parameters()))
    assert not any(bool(each.any()) for each in gradients), "zero, not none"


def test_what_is_masked_cannot_be_seen() -> None:
    network, ids = tiny_tokens("masked"), tiny_ids(3)
    masked = torch.zeros(3, 7, dtype=torch.bool)
    masked[:, [1, 4]] = True
    changed = torch.where(masked, (ids + 1) % 23, ids)
    one, other = (network(hidden_tokens(network, each, masked)) for each in (ids, changed))
    assert torch.equal(one, other)


def test_a_condition_is_never_masked_and_padding_that_does_not_count_is() -> None:
    network, ids = tiny_tokens("masked"), tiny_ids(2)
    condition, length = torch.tensor([3, 0]), torch.tensor([5, 4])
    draws = drawn([1.0, 1.0], [[0.0] * 7] * 2)
    found = masked_loss(network, ids, condition, loss_mask(condition, length, 7, "pad"), draws)
    free = ~is_condition(condition, 7)
    each = torch.nn.functional.cross_entropy(
        network.logits(network(hidden_tokens(network, ids, free))).transpose(1, 2), ids, reduction="none"
    )
    counted = torch.zeros(2, 7, dtype=torch.bool)
    counted[0, 3:5] = counted[1, :4] = True
    assert torch.allclose(found.ce_B, (each * counted).sum(dim=1))
    assert found.count_B.tolist() == [2, 4]


def test_noise_levels_tell_what_is_left() -> None:
    network, ids = tiny_tokens("masked"), tiny_ids(40)
    draws = mask_draws(40)
    found = masked_loss(network, ids, no_condition(ids), everything(ids), draws)
    levels = ((1 - draws.share_B) * 10).long().clamp(0, 9)
    for level in range(10):
        here = levels == level
        assert found.levels_4K[0, level].item() == pytest.approx(found.ce_B[here].sum().item())
        assert found.levels_4K[1, level].item() == 7 * int(here.sum())
    assert not found.levels_4K[2:].any()


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**40), st.integers(1, 300))
def test_shares_are_spread_evenly_over_the_rows_of_a_step(seed: int, rows: int) -> None:
    """By Ostrowski, no more than a few of them lie too many or too few in any tenth."""
    share = draw_masks(seed, 1, range(rows), length=1, width=0, objective=OBJECTIVE).share_B
    assert share.min() >= SMALLEST_SHARE
    assert share.max() <= 1
    for tenth in range(10):
        inside = int(((share >= tenth / 10) & (share < (tenth + 1) / 10)).sum())
        assert abs(inside - rows / 10) <= 3


def test_draws_are_of_a_place_and_not_of_what_is_drawn_beside_it() -> None:
    many = mask_draws(8, step=4)
    few = draw_masks(3, 4, [5, 2], length=7, width=0, objective=OBJECTIVE)
    assert torch.equal(few.share_B, many.share_B[[5, 2]])
    assert torch.equal(few.place_BL, many.place_BL[[5, 2]])
    assert not torch.equal(mask_draws(8, step=5).place_BL, many.place_BL)
    assert torch.equal(many.take(slice(1, 8, 3)).share_B, many.share_B[[1, 4, 7]])


def literally(network: Any, when: Tensor, choice: Tensor, config: TokenSamplerConfig) -> list[int]:
    """One row, the network asked in every step, whether anything becomes a token or not."""
    assert config.steps is not None
    ids, masked = torch.zeros(1, len(when), dtype=torch.int64), torch.ones(1, len(when), dtype=torch.bool)
    for step in range(config.steps):
        logits = network.logits(network(hidden_tokens(network, ids, masked)))[0]
        for place, at in enumerate(when.tolist()):
            if step / config.steps <= at < (step + 1) / config.steps:
                ids[0, place] = choose(logits[place : place + 1], choice[place : place + 1], config)[0]
                masked[0, place] = False
    assert not masked.any()
    return ids[0].tolist()


@pytest.mark.parametrize("steps", [1, 3, 50])
def test_leaving_out_steps_in_which_nothing_changes_changes_nothing(steps: int) -> None:
    network = tiny_tokens("masked").eval()
    config = TokenSamplerConfig("masked", steps=steps, top_p=0.9)
    when, choice = (draw_choices(0, range(5), 7, what=what) for what in ("mask", "token"))
    made = unmask(network, when, choice, config)
    assert made.tolist() == [literally(network, *row, config) for row in zip(when, choice, strict=True)]


def test_the_network_is_asked_only_when_something_is_to_become_a_token() -> None:
    network = tiny_tokens("masked").eval()
    asked: list[int] = []
    network.register_forward_hook(lambda _, given, __: asked.append(len(given[0])))
    when, choice = (draw_choices(0, range(5), 7, what=what) for what in ("mask", "token"))
    unmask(network, when, choice, TokenSamplerConfig("masked", steps=1000))
    assert sum(asked) <= 5 * 7
    assert len(asked) > 7


def test_conditions_stay_and_are_seen() -> None:
    network, ids = tiny_tokens("masked").eval(), tiny_ids(4)
    start = torch.tensor([3, 0, 2, 1])
    when, choice = (draw_choices(0, range(4), 7, what=what) for what in ("mask", "token"))
    config = TokenSamplerConfig("masked", steps=4)
    made = unmask(network, when, choice, config, condition_BC=ids[:, :3], condition_length_B=start)
    for row, first in enumerate(start.tolist()):
        assert made[row, :first].tolist() == ids[row, :first].tolist()
    other = unmask(network, when, choice, config)
    assert other[1].tolist() == made[1].tolist(), "a row without a condition"
    assert other[0, 3:].tolist() != made[0, 3:].tolist()
