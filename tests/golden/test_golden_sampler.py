"""Sampler trajectories, decoded tokens and the rules for ids, grids and laws."""

from typing import Any

import pytest
import torch
from torch import Tensor

from elf.stages.model.decoding import cut_after_end, decode, shift_left
from elf.stages.model.draws import SampleDraws
from elf.stages.model.sampler import Condition, Step, sample_latents
from elf.stages.model.schedule import time_grid
from tests.golden.reading import FLOAT64, Goldens, close, sampler_config, tolerance

GROUP = "sampler"
GUIDED_SDE = 1e-4


def trajectory_limit(sampling: dict[str, Any], dtype: torch.dtype) -> float:
    loose = sampling["method"] == "sde" and sampling["cfg"] != 1
    return FLOAT64 if dtype == torch.float64 else GUIDED_SDE if loose else tolerance(dtype)


def test_trajectory(case: str, dtype: torch.dtype, goldens: Goldens) -> None:
    record = goldens.index["cases"][case]
    if "sampling" not in record:
        pytest.skip("not a sampler")
    sampling = record["sampling"]
    config = sampler_config(record["config"], sampling)
    limit = trajectory_limit(sampling, dtype)
    network = goldens.network(record["weights"], record["model"], dtype)
    inputs, drawn = (
        goldens.inputs(record["file"], "in/", dtype),
        goldens.inputs(record["file"], "draw/", dtype),
    )
    grid = time_grid(drawn.get("grid_normals", torch.zeros(config.steps - 1, dtype=dtype)), config)
    close("grid", grid.float(), inputs["t_grid"].float(), tolerance(torch.float32))
    condition = None
    if sampling["conditional"]:
        condition = Condition(inputs["cond_seq"], inputs["cond_seq_mask"].sum(dim=1).long())
    rows = len(inputs["z0_normal"])
    draws = SampleDraws(
        start_BLD=inputs["z0_normal"],
        # the recorded float64 runs walk the float32 grid, cast
        times_BS=inputs["t_grid"].expand(rows, -1),
        noise=lambda step: drawn["eps_normal"][step],
    )
    steps: list[Step] = []
    z = sample_latents(network, draws, config, condition=condition, trace=steps.append)
    expected = goldens.expected(record, dtype)
    assert "z_final" in expected
    close("z_final", z, expected["z_final"], limit)
    seen = {
        "z_eval": torch.stack([step.z_eval_BLD for step in steps]),
        "t_eval": torch.stack([step.t_eval_B[0] for step in steps]),
        "x_pred_steps": torch.stack([step.x_BLD for step in steps]),
        "v_steps": torch.stack([step.v_BLD for step in steps]),
        "z_steps": torch.stack([step.z_BLD for step in steps]),
    }
    for name in seen.keys() & expected.keys():
        close(name, seen[name], expected[name], limit)
    check_tokens(network, z, config, condition, record, goldens.part(record["file"], "out/"))


def check_tokens(
    network: Any,
    z: Tensor,
    config: Any,
    condition: Condition | None,
    record: dict[str, Any],
    out: dict[str, Tensor],
) -> None:
    end, pads, kept = record["eos_id_used"], record["pad_ids"], record["kept_after_shift"]
    ids = decode(network, z, config)
    assert torch.equal(ids, out["decode_ids"])
    assert torch.equal(cut_after_end(ids, end, pads["ids_masked"]), out["ids_masked"])
    start = torch.zeros(len(z), dtype=torch.int64) if condition is None else condition.length_B
    if "ids_shifted" not in out:
        return
    moved = shift_left(ids, start, pads["ids_shifted"])[:, :kept]
    assert torch.equal(moved, out["ids_shifted"])
    assert torch.equal(cut_after_end(moved, end, pads["ids_shifted_masked"]), out["ids_shifted_masked"])
    if int(start.max()) + kept <= z.shape[1]:
        assert torch.equal(decode(network, z, config, start_B=start, count=kept), out["ids_shifted"])


def test_id_rules(goldens: Goldens) -> None:
    record = goldens.index["cases"].get("sampler/tokens")
    if record is None:
        pytest.skip("no id rules recorded")
    given, out = goldens.part(record["file"], "in/"), goldens.part(record["file"], "out/")
    ids, shift, pads, end = given["ids"], given["shift"], record["pads"], record["eos_id"]
    for name in ("mask_after_eos", "mask_after_eos_pad1"):
        assert torch.equal(cut_after_end(ids, end, pads[name]), out[name])
    assert torch.equal(shift_left(ids, shift, pads["shift_left"]), out["shift_left"])
    assert torch.equal(shift_left(given["x3"], shift, pads["shift_left_3d"]), out["shift_left_3d"])
    turned = shift_left(given["x3"].mT, shift, pads["shift_left_axis2"]).mT
    assert torch.equal(turned, out["shift_left_axis2"])
