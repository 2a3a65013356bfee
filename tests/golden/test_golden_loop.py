"""A short training run: accumulation, clip, schedule, optimiser and EMA together."""

import pytest
import torch

from elf.stages.model.ema import Ema
from elf.stages.model.objective import loss
from elf.stages.model.optim import clip, set_learning_rate
from elf.stages.model.schedule import learning_rate
from tests.golden.reading import (
    Goldens,
    close,
    compare,
    make_optimiser,
    objective_config,
    read_batch,
    read_draws,
    tolerance,
)

GROUP = "loop"


def test_loop(case: str, goldens: Goldens) -> None:
    """Micro-batches averaged, the mean clipped, one step, one EMA update."""
    record = goldens.index["cases"][case]
    config, rates = record["config"], record["lr_schedule"]
    objective = objective_config(config)
    network = goldens.network(record["inputs"], record["model"], torch.float32)
    optimiser = make_optimiser(config["optimizer"], network, rates["learning_rate"], config["weight_decay"])
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
