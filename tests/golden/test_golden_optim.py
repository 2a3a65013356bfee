"""Optimisers step by step, Newton–Schulz alone, learning rates, and a short training loop with accumulation."""

from typing import Any

import pytest
import torch

from elf.stages.model.ema import Ema
from elf.stages.model.naming import from_authors
from elf.stages.model.orthogonal import orthogonalise
from elf.stages.model.schedule import learning_rate
from tests.golden.reading import Goldens, close, compare, make_optimiser, tolerance

GROUP = "optim"


def test_steps(case: str, dtype: torch.dtype, goldens: Goldens) -> None:
    record = goldens.index["cases"][case]
    if "groups" not in record:
        pytest.skip("not an optimiser")
    network = goldens.network(record["inputs"], record["model"], dtype)
    kind = "muon" if any(group.get("use_muon") for group in record["groups"]) else "adamw"
    optimiser = make_optimiser(kind, network, record["lr"], record["groups"][0]["weight_decay"])
    ema = Ema(network, record["ema_decay"])
    file, prefix = (record["file"], "out") if dtype == torch.float32 else (record["file_f64"], "out64")
    names = dict(network.named_parameters())
    checked = 0
    for step in range(1, 1 + steps_recorded(goldens, record)):
        gradients = from_authors(goldens.inputs(record["inputs"], f"grad/{step}/", dtype))
        for name, parameter in names.items():
            parameter.grad = gradients.get(name)
        optimiser.step()
        ema.update(network)
        weights = goldens.part(file, f"{prefix}/{step}/p/")
        compare({n: p.detach() for n, p in names.items()}, weights, f"step {step}", tolerance(dtype))
        compare(ema.tensors, goldens.part(file, f"{prefix}/{step}/ema/"), f"EMA {step}", tolerance(dtype))
        checked += len(weights)
    assert checked


def steps_recorded(goldens: Goldens, record: dict[str, Any]) -> int:
    return max(int(key.split("/")[1]) for key in goldens.load(record["file"]) if key.startswith("out/"))


def test_newton_schulz(dtype: torch.dtype, goldens: Goldens) -> None:
    record = goldens.index["cases"].get("optim/newton_schulz")
    if record is None:
        pytest.skip("no Newton-Schulz recorded")
    expected = goldens.expected(record, dtype)
    assert expected
    for name, matrix in goldens.inputs(record["file"], "in/", dtype).items():
        close(name, orthogonalise(matrix, steps=record["steps"]), expected[name], tolerance(dtype))


def test_learning_rates(goldens: Goldens) -> None:
    record = goldens.index["cases"].get("schedules")
    if record is None:
        pytest.skip("no schedules recorded")
    checked = 0
    for name, item in record["items"].items():
        if not name.startswith("lr_"):
            continue
        expected = goldens.part(record["file"], "out64/")[name]
        got = [
            learning_rate(
                step,
                peak=item["learning_rate"],
                warmup=item["num_warmup_steps"],
                total=item["num_train_steps"] if item.get("schedule") == "cosine" else None,
                minimum=item.get("min_lr", 0.0),
            )
            for step in range(len(expected))
        ]
        close(name, torch.tensor(got, dtype=torch.float64), expected, 1e-12)
        checked += 1
    assert checked
