"""The masked baseline: MDLM, masked diffusion (Sahoo et al. 2024, arXiv 2406.07524).

A share of a row's tokens is masked, and the network gives probabilities of what stood there. With the schedule
α = 1 − share the NELBO in continuous time is the mean over shares of [0, 1], of 1/share times the nats of the masked
tokens: the loss is a bound of the NLL. Substitution (SUBS): a mask is no entry of the head, and a token that is there
stays what it is. The network is not told the share: it sees it.

As everywhere here, levels of noise are told by t, 0 for all masked and 1 for clean: 1 − share.
Shapes: B batch, L positions, H hidden, R chosen rows, N chosen positions.
"""

from contextlib import nullcontext

import torch
from torch import Tensor

from elf.stages.model.choosing import choose_tokens
from elf.stages.model.likelihood import sum_nats
from elf.stages.model.masks import is_condition
from elf.stages.model.network import full_precision
from elf.stages.model.objective import seeded
from elf.stages.model.rows import Loss, check_ids
from elf.stages.model.token_config import TokenSamplerConfig
from elf.stages.model.token_draws import MaskDraws
from elf.stages.model.token_network import TokenNetwork


def masked_loss(
    network: TokenNetwork, ids_BL: Tensor, condition_length_B: Tensor, counted_BL: Tensor, draws: MaskDraws
) -> Loss:
    """The bound, Σ over the counted positions. Padding that does not count is masked like the rest, so that it does
    not tell where a row ends; conditions never are."""
    check_ids(ids_BL, network.config.vocabulary)
    device, share_B = ids_BL.device, draws.share_B
    free_BL = ~is_condition(condition_length_B, ids_BL.shape[1]).to(device)
    masked_BL = free_BL & (draws.place_BL < share_B[:, None])
    dropping = network.training and network.config.dropout > 0.0
    with seeded(draws.dropout_seed, device) if dropping else nullcontext():
        features_BLH = network(hidden_tokens(network, ids_BL, masked_BL))
    counted_BL = counted_BL.to(device)
    return sum_nats(
        network,
        features_BLH,
        ids_BL,
        masked_BL & counted_BL,
        weight_B=1.0 / share_B,
        counted_B=counted_BL.sum(dim=1),
        t_B=1.0 - share_B,
    )


def hidden_tokens(network: TokenNetwork, ids_BL: Tensor, masked_BL: Tensor) -> Tensor:
    """(B, L, H) the tokens, the special vector where they are masked."""
    with full_precision(ids_BL):
        return torch.where(masked_BL[:, :, None], network.unknown, network.embed(ids_BL))


@torch.no_grad()
def unmask(
    network: TokenNetwork,
    when_BL: Tensor,
    choice_BL: Tensor,
    config: TokenSamplerConfig,
    *,
    condition_BC: Tensor | None = None,
    condition_length_B: Tensor | None = None,
) -> Tensor:
    """(B, L) tokens: all but the condition are masked, and become tokens in `config.steps` equal steps.

    In each step a masked position becomes one with probability step / share, whatever the others do (ancestral
    sampling): its step is uniform over all, and `when_BL` in [0, 1) draws it. `choice_BL` draws the token. Where
    nothing becomes a token nothing has changed, so the network is not asked: of a row never more often than it has
    positions.
    """
    assert config.steps is not None
    rows, length = when_BL.shape
    step_BL = (when_BL * config.steps).long().clamp(max=config.steps - 1)
    ids_BL = torch.zeros(rows, length, dtype=torch.int64, device=when_BL.device)
    if condition_BC is not None and condition_length_B is not None:
        ids_BL[:, : condition_BC.shape[1]] = condition_BC
        known_BL = is_condition(condition_length_B.to(when_BL.device), length)
        step_BL = step_BL.masked_fill(known_BL, -1)
    for step in range(config.steps):
        rows_R = (step_BL == step).any(dim=1).nonzero()[:, 0]
        if len(rows_R) == 0:
            continue
        masked_RL = step_BL[rows_R] >= step
        features_RLH = network(hidden_tokens(network, ids_BL[rows_R], masked_RL))
        within_N, places_N = (step_BL[rows_R] == step).nonzero().unbind(dim=1)
        rows_N = rows_R[within_N]
        ids_BL[rows_N, places_N] = choose_tokens(
            network, features_RLH[within_N, places_N], choice_BL[rows_N, places_N], config
        )
    return ids_BL
