"""The training loss: denoising with self-conditioning and a guided target, and decoding (paper, Section 3).

The literal algorithm runs the network three times on every row. Without dropout the same numbers need one forward
pass with gradient over all rows and one without over the self-conditioned denoise rows only, and logits on decode
rows only: the "conditional" estimate x̂_c of the target has exactly the value of the prediction that carries the
gradient, and x̂_u matters nowhere else. With dropout the two differ, and the literal passes are made.

Shapes: B batch, L positions, D width, H hidden, N chosen rows, M chosen positions. The row choices (`draws.decode_B`,
`draws.coin_B`) and the lengths are best left on the CPU: then nothing here waits for the device.
"""

from collections.abc import Generator, Iterable
from contextlib import contextmanager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor, nn

from elf.stages.model.config import ObjectiveConfig
from elf.stages.model.cross_entropy import cross_entropy
from elf.stages.model.draws import Draws
from elf.stages.model.levels import tally_levels
from elf.stages.model.masks import loss_mask
from elf.stages.model.network import Hidden, Network
from elf.stages.model.rows import Batch, Loss, State, check_ids, noisy_state
from elf.stages.model.schedule import clean_estimate, velocity


def loss(
    network: Network, batch: Batch, draws: Draws, objective: ObjectiveConfig, *, row_multiple: int = 1
) -> Loss:
    """The loss of one batch.

    `row_multiple` pads the rows of the pass without gradient to a multiple, so that a compiled network meets few
    shapes; it changes no number.
    """
    check_ids(batch.ids_BL, network.config.vocabulary)
    state = noisy_state(batch, draws, objective, guided=network.config.guided)
    device = state.z_BLD.device
    decode_B = draws.decode_B
    coin_B = draws.coin_B & ~decode_B
    literal = network.training and network.config.dropout > 0.0
    with seeded(draws.dropout_seed, device) if literal else nullcontext():
        passes = _passes(
            network, state, objective, rows_where(coin_B, device), literal=literal, row_multiple=row_multiple
        )
    counted_BL = loss_mask(batch.condition_length_B, batch.length_B, state.z_BLD.shape[1], objective.padding)
    within = rows_where(coin_B[~decode_B], device)
    l2_sum, l2_B = _denoise_error(
        network, state, objective, passes, counted_BL, rows=rows_where(~decode_B, device), within=within
    )
    ce_sum, ce_BL = decode_error(network, batch, passes.hidden, counted_BL, decode_B)
    unused = unused_parameters(
        network,
        decode=bool((counted_BL.any(dim=1) & decode_B.to(counted_BL.device)).any()),
        denoise=not bool(decode_B.all()),
    )
    counted_BL, decode_B = counted_BL.to(device), decode_B.to(device)
    count_B = counted_BL.sum(dim=1)
    levels_4K = tally_levels(
        ce_BL, counted_BL & decode_B[:, None], draws.decode_t_BL, l2_B, count_B * ~decode_B, draws.t_B
    )
    return Loss(
        sum=ce_sum + l2_sum + zero_sink(unused),
        count=count_B.sum(),
        ce_B=ce_BL.sum(dim=1),
        l2_B=l2_B,
        count_B=count_B,
        decode_B=decode_B,
        levels_4K=levels_4K,
    )


class _Passes(NamedTuple):
    """Block output of the gradient pass; the estimates x̂_u and, made apart only with dropout, x̂_c of the
    self-conditioned denoise rows."""

    hidden: Hidden
    x_u_NLD: Tensor | None
    x_c_NLD: Tensor | None


def _passes(
    network: Network,
    state: State,
    objective: ObjectiveConfig,
    coin_rows: Tensor,
    *,
    literal: bool,
    row_multiple: int,
) -> _Passes:
    if objective.self_condition == 0.0:
        hidden = network(state.z_BLD, state.t_B, guidance_B=state.guidance_B, mode_B=state.mode_B)
        return _Passes(hidden, None, None)
    rows = torch.arange(len(state.t_B), device=coin_rows.device) if literal else coin_rows
    mine = coin_rows if literal else slice(None)
    padded = pad_rows(rows, row_multiple)
    x_u_NLD = _estimate(network, state, objective, state.held_BLD[padded], padded)[: len(rows)]
    half_BLD = state.held_BLD * (1.0 - state.mode_B)[:, None, None]
    half_BLD[coin_rows] = x_u_NLD[mine]
    input_BLC = torch.cat([state.z_BLD, half_BLD], dim=-1)
    hidden = network(input_BLC, state.t_B, guidance_B=state.guidance_B, mode_B=state.mode_B)
    x_c_NLD = _estimate(network, state, objective, x_u_NLD, rows)[mine] if literal else None
    return _Passes(hidden, x_u_NLD[mine], x_c_NLD)


@torch.no_grad()
def _estimate(
    network: Network, state: State, objective: ObjectiveConfig, half_NLD: Tensor, rows_N: Tensor
) -> Tensor:
    """x̂ of the chosen rows for the given self-condition half, mode gate 0, the condition restored."""
    if len(rows_N) == 0:
        return half_NLD
    z_NLD, t_N = state.z_BLD[rows_N], state.t_B[rows_N]
    guidance_N = None if state.guidance_B is None else state.guidance_B[rows_N]
    hidden = network(torch.cat([z_NLD, half_NLD], dim=-1), t_N, guidance_B=guidance_N)
    x_NLD = estimate_clean(network, objective, hidden, z_NLD, t_N)
    return torch.where(state.condition_BL1[rows_N], state.x_BLD[rows_N], x_NLD)


def _denoise_error(
    network: Network,
    state: State,
    objective: ObjectiveConfig,
    passes: _Passes,
    counted_BL: Tensor,
    *,
    rows: Tensor,
    within: Tensor,
) -> tuple[Tensor, Tensor]:
    """Σ of the squared error over the denoise rows, with gradient, and each row's. `within` says which of the
    denoise rows are self-conditioned."""
    each_B = state.t_B.new_zeros(len(state.t_B))
    if len(rows) == 0:
        return each_B.sum(), each_B
    z_NLD, t_N = state.z_BLD[rows], state.t_B[rows]
    x_NLD = estimate_clean(network, objective, passes.hidden.take(rows), z_NLD, t_N)
    v_NLD = velocity(x_NLD, z_NLD, t_N, objective.min_gap)
    # A learnt table is not drawn towards what the network expects of it: x is held fixed here, z is not (it cancels).
    target_NLD = velocity(state.x_BLD[rows].detach(), z_NLD, t_N, objective.min_gap)
    if passes.x_u_NLD is not None and state.guidance_B is not None:
        z_MLD, t_M = z_NLD[within].detach(), t_N[within]
        v_u_MLD = velocity(passes.x_u_NLD, z_MLD, t_M, objective.min_gap)
        v_c_MLD = v_NLD.detach()[within]
        if passes.x_c_NLD is not None:
            v_c_MLD = velocity(passes.x_c_NLD, z_MLD, t_M, objective.min_gap)
        weight_M = 1.0 - 1.0 / state.guidance_B[rows][within]
        target_NLD[within] += weight_M[:, None, None] * (v_c_MLD - v_u_MLD)
    error_NL = (v_NLD - target_NLD).square().mean(dim=-1)
    error_N = (error_NL * counted_BL.to(error_NL.device)[rows]).sum(dim=1)
    return error_N.sum(), each_B.index_copy(0, rows, error_N.detach())


def decode_error(
    network: Network,
    batch: Batch,
    hidden: Hidden,
    counted_BL: Tensor,
    decode_B: Tensor,
    *,
    share_BL: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Σ of the cross-entropy over the decode rows' counted positions, with gradient, and each position's (0 where
    none counts), times its share (1 by default)."""
    each_BL = batch.x_BLD.new_zeros(batch.ids_BL.shape)
    chosen_BL = counted_BL & decode_B.to(counted_BL.device)[:, None]
    rows_M, positions_M = chosen_BL.nonzero().to(each_BL.device).unbind(dim=1)
    if len(rows_M) == 0:
        return each_BL.sum(), each_BL
    features_MD = network.decode_features(hidden.h_BLH[rows_M, positions_M])
    share_M = torch.ones_like(features_MD[:, 0]) if share_BL is None else share_BL[rows_M, positions_M]
    head, ids_M = network.decode_vocabulary, batch.ids_BL[rows_M, positions_M]
    total, each_M = cross_entropy(features_MD, head.weight, head.bias, ids_M, share_M)
    each_BL[rows_M, positions_M] = (each_M * share_M).to(each_BL.dtype)
    return total, each_BL


def estimate_clean(
    network: Network, objective: ObjectiveConfig, hidden: Hidden, z_NLD: Tensor, t_N: Tensor
) -> Tensor:
    return clean_estimate(
        network.flow(hidden),
        z_NLD,
        t_N,
        prediction=network.config.prediction,
        noise_scale=objective.noise_scale,
        min_gap=objective.min_gap,
    )


def unused_parameters(network: Network, *, decode: bool, denoise: bool) -> list[nn.Parameter]:
    """Parameters that a batch without decode or without denoise rows leaves untouched.

    They must get zero gradients, not none: AdamW skips what has none, and DDP waits for it."""
    parameters: list[nn.Parameter] = []
    if not decode:
        parameters += [*network.decode_projection.parameters(), *network.decode_vocabulary.parameters()]
        if network.decode_trunk is not None:
            parameters += network.decode_trunk.parameters()
    if not denoise:
        parameters += [*network.flow_norm.parameters(), *network.flow_head.parameters()]
        if network.flow_modulation is not None:
            parameters += network.flow_modulation.parameters()
        if network.decode_trunk is not None:
            parameters += network.trunk.parameters()
    return parameters


def untrained_parameters(network: Network, objective: ObjectiveConfig) -> list[nn.Parameter]:
    """Parameters that no batch of this objective ever gives a gradient. Whoever trains data-parallel freezes them
    (`requires_grad_(False)`), which changes no number: AdamW skips them, Muon moves them by zero."""
    if objective.self_condition > 0.0:
        return []
    trunks = [network.trunk] if network.decode_trunk is None else [network.trunk, network.decode_trunk]
    return [parameter for trunk in trunks for parameter in trunk.self_condition.parameters()]


def zero_sink(parameters: Iterable[nn.Parameter]) -> Tensor | float:
    """Zero, with a zero gradient for each parameter."""
    return sum((0.0 * parameter.flatten()[0] for parameter in parameters), 0.0)


@contextmanager
def seeded(seed: int, device: torch.device) -> Generator[None]:
    """torch's global generators, which dropout draws from, set to the seed inside and put back after."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):  # pyright: ignore[reportUnknownMemberType]
        torch.manual_seed(seed)  # pyright: ignore[reportUnknownMemberType]
        yield


def rows_where(chosen_B: Tensor, device: torch.device) -> Tensor:
    """The numbers of the rows, on the device."""
    return chosen_B.nonzero()[:, 0].to(device)


def pad_rows(rows_N: Tensor, multiple: int) -> Tensor:
    """The rows, the first repeated until their number is a multiple."""
    missing = -len(rows_N) % multiple
    return torch.cat([rows_N, rows_N[:1].expand(missing)]) if missing else rows_N
