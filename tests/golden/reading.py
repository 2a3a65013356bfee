"""Reads a folder of goldens: `index.json` (cases, configs, draws, absent gradients) beside safetensors files.

Nothing here knows a shape, or a case's name beyond its group.
"""

import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.optim import Optimizer

from elf.stages.model.config import ModelConfig, ObjectiveConfig, SamplerConfig
from elf.stages.model.draws import Draws
from elf.stages.model.naming import from_authors, to_authors
from elf.stages.model.network import Network
from elf.stages.model.objective import Batch
from elf.stages.model.optim import Muon, adamw
from elf.stages.model.schedule import guidance_scale, logit_normal, times

FLOAT32 = 2e-5
FLOAT64 = 1e-9


@dataclass(frozen=True)
class Goldens:
    path: Path
    index: dict[str, Any]

    def load(self, name: str) -> dict[str, Tensor]:
        return _load(self.path / f"{name}.safetensors")

    def part(self, name: str, prefix: str) -> dict[str, Tensor]:
        """The file's tensors below a prefix, without it."""
        return {key.removeprefix(prefix): t for key, t in self.load(name).items() if key.startswith(prefix)}

    def inputs(self, name: str, prefix: str, dtype: torch.dtype) -> dict[str, Tensor]:
        """Inputs or draws, floats cast to the dtype of the run."""
        return {
            key: t.to(dtype) if t.is_floating_point() else t for key, t in self.part(name, prefix).items()
        }

    def expected(self, case: dict[str, Any], dtype: torch.dtype, prefix: str = "out") -> dict[str, Tensor]:
        """Recorded results of the case in the dtype, `out/` or `out64/` (or of another kind, as `grad`)."""
        if dtype == torch.float32:
            return self.part(case["file"], f"{prefix}/")
        found = self.part(case["file"], f"{prefix}64/")
        return found | (self.part(case["file_f64"], f"{prefix}64/") if "file_f64" in case else {})

    def network(self, weights: str, model: dict[str, Any], dtype: torch.dtype) -> Network:
        network = Network(model_config(model)).to(dtype)
        network.load_state_dict(
            {name: t.to(dtype) for name, t in from_authors(self.part(weights, "w/")).items()}
        )
        return network


@functools.cache
def _load(path: Path) -> dict[str, Tensor]:
    return load_file(path)


@functools.cache
def open_folder(path: Path) -> Goldens:
    return Goldens(path, json.loads((path / "index.json").read_text()))


def model_config(model: dict[str, Any]) -> ModelConfig:
    return ModelConfig(
        width=model["text_encoder_dim"],
        vocabulary=model["vocab_size"],
        length=model["max_length"],
        hidden=model["hidden_size"],
        depth=model["depth"],
        heads=model["num_heads"],
        bottleneck=model["bottleneck_dim"],
        time_tokens=model["num_time_tokens"],
        guidance_tokens=model["num_self_cond_cfg_tokens"],
        mode_tokens=model["num_model_mode_tokens"],
    )


def objective_config(config: dict[str, Any]) -> ObjectiveConfig:
    return ObjectiveConfig(
        decode_share=config["decoder_prob"],
        time_mean=config["denoiser_p_mean"],
        time_std=config["denoiser_p_std"],
        time_schedule=config["time_schedule"],
        noise_scale=config["denoiser_noise_scale"],
        decode_time_mean=config["decoder_p_mean"],
        decode_time_std=config["decoder_p_std"],
        decode_noise_scale=config["decoder_noise_scale"],
        guidance_low=config["self_cond_cfg_min"],
        guidance_high=config["self_cond_cfg_max"],
        self_condition=config["self_cond_prob"],
        condition_dropout=config["label_drop_prob"],
        min_gap=config["t_eps"],
        padding=config["pad_token"],
    )


def sampler_config(config: dict[str, Any], sampling: dict[str, Any]) -> SamplerConfig:
    return SamplerConfig(
        method=sampling["method"],
        steps=sampling["steps"],
        grid=sampling["schedule"],
        guidance=sampling["sc_cfg"],
        gamma=sampling["gamma"],
        input_guidance=sampling["cfg"],
        time_mean=config["denoiser_p_mean"],
        time_std=config["denoiser_p_std"],
        noise_scale=config["denoiser_noise_scale"],
        min_gap=config["t_eps"],
        self_condition=config["self_cond_prob"] > 0,
        self_condition_guidance=sampling["sc_cfg"],
    )


def tolerance(dtype: torch.dtype) -> float:
    return FLOAT32 if dtype == torch.float32 else FLOAT64


def close(name: str, got: Tensor, expected: Tensor, limit: float) -> None:
    """Relative error in the L2 norm and in the largest entry; an all-zero expectation is exact."""
    assert got.shape == expected.shape, f"{name}: shape {tuple(got.shape)}, recorded {tuple(expected.shape)}"
    difference = (got.detach().double() - expected.double()).flatten()
    wanted = expected.double().flatten()
    if not wanted.numel():
        return
    if not wanted.any():
        assert not difference.any(), f"{name}: {difference.abs().max():.3e}, recorded zero"
        return
    norm, largest = difference.norm() / wanted.norm(), difference.abs().max() / wanted.abs().max()
    assert max(norm, largest) <= limit, (
        f"{name}: relative error {norm:.3e} (largest {largest:.3e}) > {limit:.0e}"
    )


def read_draws(
    drawn: dict[str, Tensor],
    objective: ObjectiveConfig,
    dropped: Tensor | None,
    *,
    t_B: Tensor | None = None,
    coin_B: Tensor | None = None,
) -> Draws:
    """The recorded normals, uniforms and coins as the product's draws."""
    decode_B = drawn["decoder_coin"] > 0.5
    rows, length, _ = drawn["noise"].shape
    if t_B is None:
        place = drawn["t_uniform"] if "t_uniform" in drawn else drawn["t_normal"]
        t_B = times(place, place, objective.time_schedule, mean=objective.time_mean, std=objective.time_std)
    uniform = drawn.get("cfg_uniform", torch.zeros_like(t_B))
    if coin_B is None:
        coin_B = drawn.get("self_cond_uniform", torch.ones_like(t_B)) < objective.self_condition
    return Draws(
        decode_B=decode_B,
        t_B=t_B,
        noise_BLD=drawn["noise"],
        guidance_B=guidance_scale(uniform, objective.guidance_low, objective.guidance_high),
        coin_B=coin_B,
        decode_t_BL=logit_normal(
            drawn["decoder_lambda_normal"], objective.decode_time_mean, objective.decode_time_std
        ).view(rows, length),
        decode_noise_BLD=drawn["decoder_noise"],
        drop_B=torch.zeros_like(decode_B) if dropped is None else dropped.bool(),
    )


def read_batch(inputs: dict[str, Tensor]) -> Batch:
    x = inputs["x0_encoded"]
    if "cond_seq_mask" not in inputs:
        return Batch.unconditional(x, inputs["input_ids"])
    condition, valid = inputs["cond_seq_mask"].sum(dim=1).long(), inputs["attention_mask"].sum(dim=1).long()
    return Batch(x, inputs["input_ids"], condition, valid)


def check_gradients(network: Network, record: dict[str, Any], goldens: Goldens, dtype: torch.dtype) -> None:
    gradients = {name: p.grad for name, p in network.named_parameters()}
    absent = {name for name, gradient in gradients.items() if gradient is None}
    named = to_authors({name: g for name, g in gradients.items() if g is not None})
    expected = goldens.expected(record, dtype, "grad")
    if not expected:
        assert dtype == torch.float64
        return
    assert set(named) | set(record["no_grad"]) == set(expected) | set(record["no_grad"])
    assert len(absent) == len(record["no_grad"])
    for name, recorded in expected.items():
        close(f"gradient of {name}", named[name], recorded, tolerance(dtype))


def make_optimiser(kind: str, network: Network, lr: float, decay: float) -> Optimizer:
    if kind == "muon":
        return Muon(network.parameters(), lr)
    return adamw(network.parameters(), lr, weight_decay=decay)


def compare(tensors: dict[str, Tensor], expected: dict[str, Tensor], what: str, limit: float) -> None:
    named = to_authors(tensors)
    for name, recorded in expected.items():
        close(f"{what} {name}", named[name], recorded, limit)
