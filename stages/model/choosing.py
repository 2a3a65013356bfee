"""From probabilities to tokens: temperature and nucleus (Holtzman et al. 2020), each token by one number of its own.

The number chooses by the inverse of the cumulated probabilities in float64: float32 would cut rare tokens off (Zheng et
al. 2024 found masked models judged better for that). Shapes: N positions, H hidden, V vocabulary, C chunk.
"""

import torch
from torch import Tensor

from elf.stages.model.cross_entropy import LOGITS_AT_ONCE
from elf.stages.model.token_config import TokenSamplerConfig
from elf.stages.model.token_network import TokenNetwork

COLDEST = 1e-200
"""A temperature below this does as this one does, the most probable token: float32 logits that differ at all are then
apart by more than an exponential can tell, and none is out of the range of float64."""


def choose_tokens(
    network: TokenNetwork, features_NH: Tensor, choice_N: Tensor, config: TokenSamplerConfig
) -> Tensor:
    """(N,) a token for each position, by its `choice_N` in [0, 1)."""
    chunk = max(1, LOGITS_AT_ONCE // network.config.vocabulary)
    parts = zip(torch.split(features_NH, chunk), torch.split(choice_N, chunk), strict=True)
    return torch.cat([choose(network.logits(features), choice, config) for features, choice in parts])


def choose(logits_CV: Tensor, choice_C: Tensor, config: TokenSamplerConfig) -> Tensor:
    """(C,) entries of the vocabulary. Raises ValueError where a logit is no finite number."""
    if not bool(torch.isfinite(logits_CV).all()):
        raise ValueError("the network gave logits that are not finite")
    if config.temperature == 0.0:
        return logits_CV.argmax(dim=-1)
    share_CV = torch.softmax(logits_CV.double() / max(config.temperature, COLDEST), dim=-1)
    order_CV = None
    if config.top_p < 1.0:
        share_CV, order_CV = share_CV.sort(dim=-1, descending=True, stable=True)
        before_CV = share_CV.cumsum(dim=-1) - share_CV
        share_CV = share_CV.masked_fill(before_CV >= config.top_p, 0.0)
    sum_CV = share_CV.cumsum(dim=-1)
    wanted_C1 = choice_C[:, None].to(sum_CV) * sum_CV[:, -1:]
    place_C1 = torch.searchsorted(sum_CV, wanted_C1, right=True).clamp(max=sum_CV.shape[1] - 1)
    return (place_C1 if order_CV is None else order_CV.gather(1, place_C1))[:, 0]
