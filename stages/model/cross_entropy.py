"""Cross-entropy of many positions over a large vocabulary without the table of logits.

The gradient is made in the forward pass, chunk by chunk: at most `chunk × V` logits exist at a time, and the
backward pass only scales what is there. Shapes: N positions, D width, V vocabulary, C chunk.
"""

from typing import Any

import torch
from torch import Tensor

LOGITS_AT_ONCE = 1 << 23


class _ChunkedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        features_ND: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor,
        targets_N: Tensor,
        share_N: Tensor,
        differentiate: bool,
    ) -> tuple[Tensor, Tensor]:
        each_N = features_ND.new_empty(len(features_ND))
        gradients = (
            [torch.zeros_like(given) for given in (features_ND, weight_VD, bias_V)] if differentiate else []
        )
        chunk = max(1, LOGITS_AT_ONCE // len(weight_VD))
        for start in range(0, len(features_ND), chunk):
            part = slice(start, start + chunk)
            features_CD, targets_C1 = features_ND[part], targets_N[part, None]
            scores_CV = torch.addmm(bias_V, features_CD, weight_VD.T)
            log_sum_C1 = scores_CV.logsumexp(dim=-1, keepdim=True)
            each_N[part] = (log_sum_C1 - scores_CV.gather(1, targets_C1))[:, 0]
            if gradients:
                # softmax − one-hot, in the memory of the scores
                scores_CV.sub_(log_sum_C1).exp_()
                scores_CV.scatter_add_(1, targets_C1, torch.full_like(log_sum_C1, -1.0))
                scores_CV.mul_(share_N[part, None])
                torch.mm(scores_CV, weight_VD, out=gradients[0][part])
                gradients[1].addmm_(scores_CV.T, features_CD)
                gradients[2].add_(scores_CV.sum(dim=0))
        ctx.gradients = gradients
        ctx.mark_non_differentiable(each_N)
        return (each_N * share_N).sum(), each_N

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor | None, ...]:
        # Handed on as they are: a second gradient as large as the vocabulary's weights would be the peak of a step.
        if ctx.gradients is None:
            raise RuntimeError("This loss gave its gradients away when it was first asked for them.")
        gradients, ctx.gradients = ctx.gradients, None
        features, weight, bias = (each.mul_(grad_outputs[0]) for each in gradients)
        return features, weight, bias, None, None, None


def cross_entropy(
    features_ND: Tensor, weight_VD: Tensor, bias_V: Tensor, targets_N: Tensor, share_N: Tensor
) -> tuple[Tensor, Tensor]:
    """Σ share·each, and each, of −log softmax(features·weightᵀ + bias)[target]. The sum carries the gradient, the
    list none.

    In the dtype of the weights, autocast or not.
    """
    with torch.autocast(features_ND.device.type, enabled=False):
        features_ND, share_N = features_ND.to(weight_VD.dtype), share_N.to(weight_VD.dtype)
        return _ChunkedCrossEntropy.apply(  # pyright: ignore
            features_ND, weight_VD, bias_V, targets_N, share_N, torch.is_grad_enabled()
        )


def arg_max(features_ND: Tensor, weight_VD: Tensor, bias_V: Tensor) -> Tensor:
    """(N,) most probable entry of each position, as many logits at a time as `cross_entropy` holds."""
    chunk = max(1, LOGITS_AT_ONCE // len(weight_VD))
    with torch.autocast(features_ND.device.type, enabled=False):
        parts = torch.split(features_ND.to(weight_VD.dtype), chunk)
        return torch.cat([torch.addmm(bias_V, part, weight_VD.T).argmax(dim=-1) for part in parts])
