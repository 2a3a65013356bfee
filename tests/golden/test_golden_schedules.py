"""Laws, grids and the path between noise and data."""

import pytest
import torch

from elf.stages.model.config import SamplerConfig
from elf.stages.model.schedule import (
    grid_from,
    guidance_scale,
    interpolate,
    logit_normal,
    time_grid,
    times,
    velocity,
)
from tests.golden.reading import Goldens, close, tolerance


def test_schedules(dtype: torch.dtype, goldens: Goldens) -> None:
    record = goldens.index["cases"].get("schedules")
    if record is None:
        pytest.skip("no schedules recorded")
    given = goldens.inputs(record["file"], "in/", dtype)
    expected = goldens.expected(record, dtype)
    checked = 0
    for name, item in record["items"].items():
        if name.startswith("logit_normal"):
            got = logit_normal(given["normals"], item["P_mean"], item["P_std"])
        elif name == "uniform":
            got = times(given["normals"], given["uniforms"], "uniform", mean=0.0, std=1.0)
        elif name.startswith("cfg_scale"):
            got = guidance_scale(given["uniforms"], item["cfg_min"], item["cfg_max"])
        elif name.startswith("grid_logit"):
            normals = given[f"grid_normals_{item['n_steps']}"]
            got = grid_from(logit_normal(normals, item["P_mean"], item["P_std"]))
        elif name.startswith("grid_uniform"):
            steps = item["n_steps"]
            got = time_grid(torch.zeros(steps - 1, dtype=dtype), SamplerConfig(steps=steps, grid="uniform"))
        else:
            continue
        close(name, got, expected[name], tolerance(dtype))
        checked += 1
    assert checked


def test_path(dtype: torch.dtype, goldens: Goldens) -> None:
    """The noisy state with its condition kept, then v from a network's output, then both restored."""
    record = goldens.index["cases"].get("schedules")
    if record is None:
        pytest.skip("no schedules recorded")
    given = goldens.inputs(record["file"], "in/", dtype)
    expected, item = goldens.expected(record, dtype), record["items"]["add_noise"]
    condition = given["cond_mask"][..., None] > 0
    z = interpolate(given["x0"], given["noise"], given["t"], item["denoiser_noise_scale"])
    z = torch.where(condition, given["x0"], z)
    close("add_noise", z, expected["add_noise"], tolerance(dtype))
    v = velocity(given["net_out"], z, given["t"], item["t_eps"])
    close("v", v, expected["v"], tolerance(dtype))
    close("v_restored", v.masked_fill(condition, 0.0), expected["v_restored"], tolerance(dtype))
    restored = torch.where(condition, given["x0"], given["net_out"])
    close("x_restored", restored, expected["x_restored"], tolerance(dtype))
