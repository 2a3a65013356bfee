"""Optimisers step by step, Newton–Schulz alone, learning rates, and a short training loop with accumulation."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim import Optimizer

from elf.stages.model.ema import Ema
from elf.stages.model.naming import from_authors, to_authors
from elf.stages.model.network import Network
from elf.stages.model.objective import loss
from elf.stages.model.optim import Muon, adamw, clip, set_learning_rate
from elf.stages.model.orthogonal import orthogonalise
from elf.stages.model.schedule import learning_rate
from tests.golden.reading import Goldens, close, objective_config, read_batch, read_draws, tolerance

GROUP = "optim"


def make_optimiser(kind: str, network: Network, lr: float, decay: float) -> Optimizer:
    if kind == "muon":
        return Muon(network.parameters(), lr)
    return adamw(network.parameters(), lr, weight_decay=decay)


def compare(tensors: dict[str, Tensor], expected: dict[str, Tensor], what: str, limit: float) -> None:
    named = to_authors(tensors)
    for name, recorded in expected.items():
        close(f"{what} {name}", named[name], recorded, limit)


def test_steps(case: str, dtype: torch.dtype, goldens: Goldens) -> None:
    record = goldens.index["cases"][case]
    if "groups" not in record:
        pytest.skip("not an optimiser")
    network = goldens.network(record["inputs"], record["model"], dtype)
    kind = case.split("/")[1]
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


@pytest.mark.parametrize("kind", ["muon", "adamw"])
def test_loop(kind: str, goldens: Goldens) -> None:
    """Micro-batches averaged, the mean clipped, one step, one EMA update."""
    record = goldens.index["cases"].get(f"loop/{kind}")
    if record is None:
        pytest.skip("no loop recorded")
    config, rates = record["config"], record["lr_schedule"]
    objective = objective_config(config)
    network = goldens.network(record["inputs"], record["model"], torch.float32)
    optimiser = make_optimiser(kind, network, rates["learning_rate"], config["weight_decay"])
    ema = Ema(network, config["ema_decay1"])
    expected = goldens.part(record["file"], "out/")
    every = config["grad_accum_steps"]
    for micro in range(record["micro_steps"]):
        inputs = goldens.inputs(record["inputs"], f"in/{micro}/", torch.float32)
        drawn = goldens.inputs(record["inputs"], f"draw/{micro}/", torch.float32)
        result = loss(network, read_batch(inputs), read_draws(drawn, objective, None), objective)
        (result.total / every).backward()
        metrics = torch.stack([result.total, result.l2, result.ce])
        close(f"metrics {micro}", metrics, expected["metrics"][micro], tolerance(torch.float32))
        if (micro + 1) % every:
            continue
        step = micro // every
        norm = clip(network.parameters(), record["clip"])
        close(f"norm {step}", norm, expected["grad_norms"][step], tolerance(torch.float32))
        rate = learning_rate(step, peak=rates["learning_rate"], warmup=rates["num_warmup_steps"])
        assert rate == pytest.approx(record["lrs"][step])
        set_learning_rate(optimiser, rate)
        optimiser.step()
        optimiser.zero_grad()
        ema.update(network)
        weights = {name: p.detach() for name, p in network.named_parameters()}
        recorded = goldens.part(record["file"], f"out/step{step + 1}/p/")
        assert recorded
        compare(weights, recorded, f"step {step}", tolerance(torch.float32))
    compare(ema.tensors, goldens.part(record["file"], "out/ema/"), "EMA", tolerance(torch.float32))
