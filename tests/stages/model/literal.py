"""The training algorithm as it is written down: three forward passes over every row, logits for every position.

The oracle of the product's objective, slow and plain. Names follow the recorded numbers. Shapes as in the objective.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from elf.stages.model.config import ObjectiveConfig
from elf.stages.model.draws import Draws
from elf.stages.model.network import Network
from elf.stages.model.objective import Batch


@dataclass(frozen=True)
class Literal:
    total: Tensor
    values: dict[str, Tensor]


def literal_loss(network: Network, batch: Batch, draws: Draws, objective: ObjectiveConfig) -> Literal:
    """Total loss and everything computed on the way."""
    (B, L, _), device = batch.x_BLD.shape, batch.x_BLD.device
    position = torch.arange(L, device=device)[None]
    cond = (position < batch.condition_length_B.to(device)[:, None])[..., None]
    valid = (position < batch.length_B.to(device)[:, None])[..., None]
    drop = draws.drop_B.to(device)[:, None, None]
    decode = draws.decode_B.to(device)[:, None, None]
    x0 = torch.where(cond & drop, 0.0, batch.x_BLD)
    t = draws.t_B[:, None, None]
    gap = (1 - t).clamp(min=objective.min_gap)

    denoiser_z = t * x0 + (1 - t) * objective.noise_scale * draws.noise_BLD
    denoiser_z = torch.where(cond, x0, denoiser_z)
    p = draws.decode_t_BL[..., None]
    decoder_z = p * x0 + (1 - p) * objective.decode_noise_scale * draws.decode_noise_BLD
    if objective.decode_condition == "kept":
        decoder_z = torch.where(cond, x0, decoder_z)
    v_target = (x0 - denoiser_z) / gap

    guidance = draws.guidance_B if network.config.guided else None
    zero_half = torch.where(cond, x0, torch.zeros_like(x0))
    values = {"denoiser_z": denoiser_z, "decoder_z": decoder_z, "v_target": v_target, "x0": x0}

    def clean(output: Tensor) -> Tensor:
        if network.config.prediction == "v":
            return denoiser_z + (1 - t) * output
        if network.config.prediction == "eps":
            return (denoiser_z - (1 - t) * objective.noise_scale * output) / t.clamp(min=objective.min_gap)
        return output

    def estimate(half: Tensor) -> Tensor:
        with torch.no_grad():
            hidden = network(torch.cat([denoiser_z, half], -1), draws.t_B, guidance_B=guidance)
            return torch.where(cond, x0, clean(network.flow(hidden)))

    z_mixed = torch.where(decode, decoder_z, denoiser_z)
    t_mixed = torch.where(decode[:, 0, 0], 1.0, draws.t_B)
    use = draws.coin_B.to(device)[:, None, None] & (objective.self_condition > 0)
    model_input, x_u = z_mixed, None
    if objective.self_condition > 0:
        x_u = estimate(zero_half)
        half = torch.where(use, x_u, zero_half)
        half = torch.where(decode, torch.zeros_like(half), half)
        model_input = torch.cat([z_mixed, half], -1)
        values |= {"x_pred_init": x_u, "sc_half": half}
    hidden = network(model_input, t_mixed, guidance_B=guidance, mode_B=decode[:, 0, 0].to(x0.dtype))
    x_pred = clean(network.flow(hidden))
    logits = network.logits(hidden.h_BLH)
    v_pred = (x_pred - denoiser_z) / gap
    target = v_target
    if x_u is not None and guidance is not None:
        v_u = (x_u - denoiser_z) / gap
        v_c = (estimate(x_u) - denoiser_z) / gap
        guided = v_target + (1 - 1 / guidance[:, None, None]) * (v_c - v_u)
        target = torch.where(use, guided, v_target)

    mask = (~cond if objective.padding == "eos" else ~cond & valid)[..., 0].to(x0.dtype)
    ce = F.cross_entropy(logits.flatten(0, 1), batch.ids_BL.flatten(), reduction="none").view(B, L)
    l2 = (v_pred - target.detach()).square().mean(-1)
    ce_mask, l2_mask = mask * decode[..., 0], mask * ~decode[..., 0]
    total = ((ce * ce_mask).sum() + (l2 * l2_mask).sum()) / mask.sum()
    values |= {
        "z_mixed": z_mixed,
        "t_mixed": t_mixed,
        "model_input": model_input,
        "net_out": x_pred,
        "decoder_logits": logits,
        "ce_per_token": ce,
        "l2_per_token": l2,
        "loss_mask": mask,
        "ce_mask": ce_mask,
        "l2_mask": l2_mask,
        "loss": total,
        "ce_loss_val": (ce * ce_mask).sum() / ce_mask.sum().clamp(min=1),
        "l2_loss_val": (l2 * l2_mask).sum() / l2_mask.sum().clamp(min=1),
    }
    return Literal(total, values)
