"""What both baselines minimise: nats of the tokens of a row, summed up over its counted positions.

Shapes: B batch, L positions, H hidden, M chosen positions.
"""

import torch
from torch import Tensor

from elf.stages.model.cross_entropy import cross_entropy
from elf.stages.model.levels import sum_by_level
from elf.stages.model.rows import Loss
from elf.stages.model.token_network import TokenNetwork


def sum_nats(
    network: TokenNetwork,
    features_BLH: Tensor,
    ids_BL: Tensor,
    chosen_BL: Tensor,
    *,
    weight_B: Tensor,
    counted_B: Tensor,
    t_B: Tensor,
) -> Loss:
    """Σ weight · −log p(id) over the chosen positions of each row, which is said to have `counted_B` tokens.

    In `levels_4K` it stands where a flow has its decode branch, a row at its `t_B`.
    """
    rows_M, positions_M = chosen_BL.nonzero().to(features_BLH.device).unbind(dim=1)
    features_MH, ids_M = features_BLH[rows_M, positions_M], ids_BL[rows_M, positions_M]
    weight_M = weight_B.to(features_MH)[rows_M]
    total, each_M = cross_entropy(features_MH, network.weight, network.bias, ids_M, weight_M)
    each_BL = features_BLH.new_zeros(ids_BL.shape)
    each_BL[rows_M, positions_M] = each_M * weight_M
    nats_B, counted_B = each_BL.sum(dim=1), counted_B.to(features_BLH.device)
    nothing_K = torch.zeros_like(sum_by_level(nats_B, t_B))
    return Loss(
        sum=total,
        count=counted_B.sum(),
        ce_B=nats_B,
        l2_B=torch.zeros_like(nats_B),
        count_B=counted_B,
        decode_B=torch.ones_like(counted_B, dtype=torch.bool),
        levels_4K=torch.stack(
            [sum_by_level(nats_B, t_B), sum_by_level(counted_B, t_B), nothing_K, nothing_K]
        ),
    )
