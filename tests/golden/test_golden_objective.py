"""The training loss: the literal algorithm gives every recorded value, the product's gives loss, parts, gradients."""

from typing import Any

import torch
from torch import Tensor

from elf.stages.model.config import ObjectiveConfig
from elf.stages.model.draws import Draws
from elf.stages.model.masks import loss_mask
from elf.stages.model.naming import to_authors
from elf.stages.model.network import Network
from elf.stages.model.objective import Batch, loss
from elf.stages.model.schedule import guidance_scale, logit_normal, times
from tests.golden.conftest import Goldens, close, objective_config, tolerance
from tests.stages.model.literal import literal_loss

GROUP = "train"


def read_draws(drawn: dict[str, Tensor], objective: ObjectiveConfig, dropped: Tensor | None) -> Draws:
    """The recorded normals, uniforms and coins as the product's draws."""
    decode_B = drawn["decoder_coin"] > 0.5
    rows, length, _ = drawn["noise"].shape
    place = drawn["t_uniform"] if "t_uniform" in drawn else drawn["t_normal"]
    t_B = times(place, place, objective.time_schedule, mean=objective.time_mean, std=objective.time_std)
    uniform = drawn.get("cfg_uniform", torch.zeros_like(place))
    coin = (
        drawn["self_cond_uniform"] < objective.self_condition if "self_cond_uniform" in drawn else ~decode_B
    )
    return Draws(
        decode_B=decode_B,
        t_B=t_B,
        noise_BLD=drawn["noise"],
        guidance_B=guidance_scale(uniform, objective.guidance_low, objective.guidance_high),
        coin_B=coin,
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


def prepare(
    record: dict[str, Any], goldens: Goldens, dtype: torch.dtype
) -> tuple[Network, Batch, Draws, ObjectiveConfig]:
    objective = objective_config(record["config"])
    inputs = goldens.inputs(record["file"], "in/", dtype)
    drawn = goldens.inputs(record["file"], "draw/", dtype)
    network = goldens.network(record["weights"], record["model"], dtype)
    return network, read_batch(inputs), read_draws(drawn, objective, inputs.get("label_drop_mask")), objective


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


def test_literal(case: str, dtype: torch.dtype, goldens: Goldens) -> None:
    record = goldens.index["cases"][case]
    network, batch, draws, objective = prepare(record, goldens, dtype)
    result = literal_loss(network, batch, draws, objective)
    expected = goldens.expected(record, dtype)
    compared = set(expected) & set(result.values)
    assert dtype == torch.float64 or len(compared) > 10
    for name in sorted(compared):
        # What decode rows would have as squared error counts nowhere.
        weight = expected["l2_mask"] if name == "l2_per_token" else torch.ones(())
        close(name, result.values[name] * weight, expected[name] * weight, tolerance(dtype))
    close_scalars(record, dtype, result.total, result.values["ce_loss_val"], result.values["l2_loss_val"])
    result.total.backward()
    check_gradients(network, record, goldens, dtype)


def test_product(case: str, dtype: torch.dtype, goldens: Goldens) -> None:
    record = goldens.index["cases"][case]
    network, batch, draws, objective = prepare(record, goldens, dtype)
    result = loss(network, batch, draws, objective)
    close_scalars(record, dtype, result.total, result.ce, result.l2)
    expected = goldens.expected(record, dtype)
    if expected:
        mask = loss_mask(batch.condition_length_B, batch.length_B, batch.ids_BL.shape[1], objective.padding)
        close("mask", mask.to(dtype), expected["loss_mask"], 0.0)
        ce_B = (expected["ce_per_token"] * expected["ce_mask"]).sum(dim=1)
        l2_B = (expected["l2_per_token"] * expected["l2_mask"]).sum(dim=1)
        close("cross-entropy per row", result.ce_B, ce_B, tolerance(dtype))
        close("squared error per row", result.l2_B, l2_B, tolerance(dtype))
        close("counts", result.count_B, expected["loss_mask"].sum(dim=1), 0.0)
    result.total.backward()
    check_gradients(network, record, goldens, dtype)
    norm = torch.nn.utils.get_total_norm([p.grad for p in network.parameters() if p.grad is not None])
    limit = tolerance(dtype)
    close("gradient norm", norm, torch.tensor(record["scalars_f64"]["grad_norm"], dtype=torch.float64), limit)


def close_scalars(record: dict[str, Any], dtype: torch.dtype, total: Tensor, ce: Tensor, l2: Tensor) -> None:
    for name, got in (("loss", total), ("ce_loss_val", ce), ("l2_loss_val", l2)):
        recorded = torch.tensor(record["scalars_f64"][name], dtype=torch.float64)
        close(name, got, recorded, tolerance(dtype))
