"""The loss by noise level: ten bins of the time t, equally wide, for each branch.

A denoise row has one t for all of its positions; a decode row has one for each position. Bins are sums and counts, so
that whoever adds up batches, steps or processes can average exactly. Shapes: B batch, L positions, K levels.
"""

import torch
from torch import Tensor

from elf.stages.model.config import LEVELS


def level_of(t: Tensor) -> Tensor:
    """The bin of each t of [0, 1]; 1 is of the last."""
    return (t * LEVELS).long().clamp(0, LEVELS - 1)


def sum_by_level(values: Tensor, t: Tensor) -> Tensor:
    """(K,) float64: the values, of any shape, added up by the bin of the t that stands at the same place.

    Each bin is a sum of its own: adding where bins say would come out another way each time on a GPU.
    """
    bins_K = torch.arange(LEVELS, device=t.device)
    here_NK = level_of(t).flatten()[:, None] == bins_K
    return torch.where(here_NK, values.flatten()[:, None], 0).sum(dim=0, dtype=torch.float64)


def tally_levels(
    ce_BL: Tensor, decode_share_BL: Tensor, decode_t_BL: Tensor, l2_B: Tensor, share_B: Tensor, t_B: Tensor
) -> Tensor:
    """(4, K) float64: Σ cross-entropy, what counts of the decode rows, Σ squared error, what counts of the denoise
    rows. A share is how much a position, or a row, counts; 0 for those of the other branch."""
    return torch.stack(
        [
            sum_by_level(ce_BL, decode_t_BL),
            sum_by_level(decode_share_BL, decode_t_BL),
            sum_by_level(l2_B, t_B),
            sum_by_level(share_B, t_B),
        ]
    )
