"""The autoregressive baseline: its loss by hand, what it may see, and that what it keeps changes nothing."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from elf.stages.model.autoregressive import next_token_loss, shifted, write
from elf.stages.model.choosing import choose
from elf.stages.model.masks import loss_mask
from elf.stages.model.token_config import TokenSamplerConfig
from elf.stages.model.token_draws import draw_choices
from elf.stages.model.token_network import TokenNetwork
from tests.stages.model.tiny_tokens import SHAPE, Told, everything, tiny_ids, tiny_tokens, token_draws

PLAIN = TokenSamplerConfig("autoregressive")


def test_of_a_network_that_knows_nothing_it_is_the_logarithm_of_the_vocabulary() -> None:
    network, ids = tiny_tokens("autoregressive"), tiny_ids(5)
    with torch.no_grad():
        network.table.zero_()
        network.bias.zero_()
    found = next_token_loss(network, ids, everything(ids), token_draws(5))
    assert found.total.item() == pytest.approx(math.log(23))
    assert found.count.item() == 5 * 7


def test_two_tokens_by_hand() -> None:
    """The first is `a` with probability 3/4; after `a` comes `b` with 2/3, after `b` comes `a` with 9/10."""
    start, after_a, after_b = ([3 / 4, 1 / 4], [1 / 3, 2 / 3], [9 / 10, 1 / 10])
    table = torch.tensor([after_a, after_b, start], dtype=torch.float64).log()
    network: Any = Told(2, lambda x_BLH: x_BLH @ table)
    found = next_token_loss(
        network, torch.tensor([[0, 1, 0]]), torch.ones(1, 3, dtype=torch.bool), token_draws(1)
    )
    assert found.sum.item() == pytest.approx(-math.log(3 / 4 * 2 / 3 * 9 / 10))


def test_it_is_the_cross_entropy_of_every_next_token_with_its_gradients() -> None:
    network, ids = tiny_tokens("autoregressive"), tiny_ids(5)
    found = next_token_loss(network, ids, everything(ids), token_draws(5))
    plain = torch.nn.functional.cross_entropy(
        network.logits(network(shifted(network, ids))).flatten(0, 1), ids.flatten(), reduction="sum"
    )
    assert found.sum.item() == pytest.approx(plain.item())
    assert found.ce_B.sum().item() == pytest.approx(plain.item())
    parameters = list(network.parameters())
    for mine, literal in zip(
        torch.autograd.grad(found.sum, parameters), torch.autograd.grad(plain, parameters), strict=True
    ):
        assert torch.allclose(mine, literal, atol=1e-9)


@pytest.mark.parametrize("place", range(7))
def test_a_token_changes_only_what_is_asked_behind_it(place: int) -> None:
    network, ids = tiny_tokens("autoregressive"), tiny_ids(3)
    changed = ids.clone()
    changed[:, place] = (ids[:, place] + 1) % SHAPE["vocabulary"]
    before, after = (network(shifted(network, each)) for each in (ids, changed))
    assert torch.equal(before[:, : place + 1], after[:, : place + 1])
    assert place == 6 or bool((before[:, place + 1 :] != after[:, place + 1 :]).any(dim=2).all())


def test_a_condition_is_seen_and_does_not_count() -> None:
    network, ids = tiny_tokens("autoregressive"), tiny_ids(4)
    condition, length = torch.tensor([2, 0, 3, 1]), torch.tensor([5, 7, 6, 2])
    counted = loss_mask(condition, length, 7, "pad")
    found = next_token_loss(network, ids, counted, token_draws(4))
    assert found.count_B.tolist() == [3, 7, 3, 1]
    each = torch.nn.functional.cross_entropy(
        network.logits(network(shifted(network, ids))).transpose(1, 2), ids, reduction="none"
    )
    assert torch.allclose(found.ce_B, (each * counted).sum(dim=1))


def by_whole_rows(
    network: TokenNetwork, choices: Tensor, config: TokenSamplerConfig, given: Tensor, start: int
) -> list[int]:
    """Tokens of one row, the whole row through the network for each of them."""
    row = given.clone()
    for place in range(len(choices)):
        logits = network.logits(network(shifted(network, row[None])))[:, start + place]
        row[start + place] = choose(logits, choices[None, place], config)[0]
    return row[start : start + len(choices)].tolist()


@pytest.mark.parametrize("config", [PLAIN, TokenSamplerConfig("autoregressive", temperature=0.7, top_p=0.8)])
def test_what_is_kept_of_earlier_tokens_changes_none(config: TokenSamplerConfig) -> None:
    network = tiny_tokens("autoregressive").eval()
    choices = draw_choices(0, range(6), 7, what="token")
    made = write(network, choices, config, end_id=-1)
    nothing = torch.zeros(7, dtype=torch.int64)
    assert made.tolist() == [by_whole_rows(network, row, config, nothing, 0) for row in choices]


def test_each_row_goes_on_from_its_own_condition() -> None:
    network, given = tiny_tokens("autoregressive").eval(), tiny_ids(5)
    start = torch.tensor([3, 0, 1, 2, 3])
    choices = draw_choices(0, range(5), 4, what="token")
    made = write(network, choices, PLAIN, end_id=-1, condition_BC=given[:, :3], condition_length_B=start)
    assert made.tolist() == [
        by_whole_rows(network, row, PLAIN, ids, int(first))
        for row, ids, first in zip(choices, given, start, strict=True)
    ]


def test_it_stops_when_all_have_ended_and_not_before() -> None:
    network = tiny_tokens("autoregressive").eval()
    choices = draw_choices(0, range(6), 7, what="token")
    whole = write(network, choices, PLAIN, end_id=-1)
    end = int(whole[0, 2])
    made = write(network, choices, PLAIN, end_id=end)
    for row, full in zip(made.tolist(), whole.tolist(), strict=True):
        stop = full.index(end) if end in full else 7
        assert row[: stop + 1] == full[: stop + 1]
    assert write(network, choices[:1], PLAIN, end_id=end)[0, 2:].tolist() == [end] * 5


def test_what_does_not_fit_into_a_row_is_refused() -> None:
    network = tiny_tokens("autoregressive")
    with pytest.raises(ValueError, match="do not fit into rows of 7"):
        write(
            network,
            torch.zeros(1, 5),
            PLAIN,
            end_id=1,
            condition_BC=tiny_ids(1)[:, :3],
            condition_length_B=torch.tensor([3]),
        )
