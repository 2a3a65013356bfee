"""A table of embeddings that is learnt with the network: its rows' size, and where its gradient comes from."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from elf.stages.model.config import ObjectiveConfig
from elf.stages.model.draws import Draws
from elf.stages.model.network import Network
from elf.stages.model.objective import Batch, loss
from elf.stages.model.rows import noisy_state
from tests.stages.model.tiny import tiny_batch, tiny_draws, tiny_network

ROWS = 6


def embedded(network: Network) -> Batch:
    ids_BL = tiny_batch(ROWS).ids_BL
    return Batch.unconditional(network.embed(ids_BL), ids_BL)


def drawn(objective: ObjectiveConfig, *, decode: bool, coin: bool) -> Draws:
    draws = tiny_draws(ROWS, objective)
    yes, no = torch.ones(ROWS, dtype=torch.bool), torch.zeros(ROWS, dtype=torch.bool)
    return replace(draws, decode_B=yes if decode else no, coin_B=yes if coin else no)


def gradient(total: Tensor, network: Network) -> Tensor:
    assert network.table is not None
    (found,) = torch.autograd.grad(total, [network.table])
    return found


def test_rows_have_unit_size_whatever_the_table_holds() -> None:
    network = tiny_network(table=True)
    assert network.table is not None
    x = network.embed(torch.arange(23)[None])
    assert torch.allclose(x.square().mean(dim=-1), torch.ones(1, 23, dtype=x.dtype), atol=1e-4)
    with torch.no_grad():
        network.table.mul_(7.0)
    assert torch.allclose(network.embed(torch.arange(23)[None]), x, atol=1e-4)


def test_a_network_without_one_says_so() -> None:
    with pytest.raises(ValueError, match="there is no embedding of ids"):
        tiny_network().embed(torch.zeros(1, 1, dtype=torch.int64))


@pytest.mark.parametrize("coin", [False, True])
def test_of_denoising_it_comes_through_what_the_network_is_given(coin: bool) -> None:
    """By hand: x̂ is asked of z, which is of x; the target, and what it is guided by, are held fixed."""
    objective = ObjectiveConfig()
    network, draws = tiny_network(table=True), drawn(objective, decode=False, coin=coin)
    mine = gradient(loss(network, embedded(network), draws, objective).sum, network)

    state = noisy_state(embedded(network), draws, objective, guided=True)
    assert state.guidance_B is not None

    def ask(half: Tensor) -> Tensor:
        given = torch.cat([state.z_BLD, half], dim=-1)
        return network.flow(network(given, state.t_B, guidance_B=state.guidance_B))

    target, half = state.x_BLD.detach(), torch.zeros_like(state.z_BLD)
    if coin:
        with torch.no_grad():
            first = ask(half)
        half = first
    x = ask(half)
    if coin:
        weight = (1 - 1 / state.guidance_B)[:, None, None]
        target = target + weight * (x.detach() - half)
    gap = (1 - state.t_B).clamp(min=objective.min_gap)[:, None]
    error = ((x - target).square().mean(dim=-1) / gap.square()).sum()
    assert torch.allclose(mine, gradient(error, network), atol=1e-8)
    assert bool(mine.any())


def test_of_decoding_it_keeps_rows_apart() -> None:
    objective = ObjectiveConfig()
    network, draws = tiny_network(table=True), drawn(objective, decode=True, coin=False)
    found = gradient(loss(network, embedded(network), draws, objective).sum, network)
    used = embedded(network).ids_BL.unique()
    assert bool(found[0, used].any(dim=-1).all())
    unused = torch.ones(23, dtype=torch.bool)
    unused[used] = False
    assert not bool(found[0, unused].any())
