"""The training loss: the literal algorithm gives every recorded value, the product's gives loss, parts, gradients."""

from typing import Any

import torch
from torch import Tensor

from elf.stages.model.config import ObjectiveConfig
from elf.stages.model.draws import Draws
from elf.stages.model.masks import loss_mask
from elf.stages.model.network import Network
from elf.stages.model.objective import Batch, loss
from tests.golden.reading import (
    Goldens,
    check_gradients,
    close,
    objective_config,
    read_batch,
    read_draws,
    tolerance,
)
from tests.stages.model.literal import literal_loss

GROUP = "train"


def prepare(
    record: dict[str, Any], goldens: Goldens, dtype: torch.dtype
) -> tuple[Network, Batch, Draws, ObjectiveConfig]:
    objective = objective_config(record["config"])
    inputs = goldens.inputs(record["file"], "in/", dtype)
    drawn = goldens.inputs(record["file"], "draw/", dtype)
    network = goldens.network(record["weights"], record["model"], dtype)
    return network, read_batch(inputs), read_draws(drawn, objective, inputs.get("label_drop_mask")), objective


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
