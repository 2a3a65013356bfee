"""ELF-B: where the blocks weigh most and an optimiser step is longer than the loss."""

from functools import partial
from pathlib import Path

import torch
from literal_step import LiteralMuon
from measuring import Bar, medians
from product_step import ProductStep
from torch import nn
from training_case import LR, Case, compare, ratio, seconds_of

from elf.stages.model.optim import Muon
from elf.stages.saving import Saver
from elf.stages.training_state import kinds_of


def large(case: Case, folder: Path) -> list[Bar]:
    """ELF-B: the loss in steps, the optimiser by kinds of parameters, a checkpoint."""
    name, watch = "ELF-B", case.watch
    bars = compare(name, case)
    for fed in case.fed():
        batch = case.literal.encode(fed.raw.ids_BL)
        with watch("literal loss"):
            case.literal.add_gradients(batch, fed.draws)
        with watch("product loss"):
            case.product.add_gradients(fed)
    seconds = optimiser_seconds(case)
    for side, each in seconds.items():
        watch.seconds[f"{side} optimiser"].append(each)
    bars += [ratio(name, "loss", watch, 1.45), ratio(name, "optimiser", watch, 1.5)]
    blocked = checkpoint_seconds(case.product, folder)
    step = watch.mean("product loss") + watch.mean("product optimiser")
    return [*bars, Bar("ELF-B: a checkpoint blocks training, in steps", blocked / step, 1.0, at_most=True)]


def optimiser_seconds(case: Case) -> dict[str, float]:
    """Of a whole step: what lies outside the blocks, and one block as often as there are blocks, for they are alike
    and matrices are taken one by one; and the average."""
    groups: dict[str, list[nn.Parameter]] = {"block": [], "other": []}
    for key, parameter in case.product.network.named_parameters():
        if not key.startswith("trunk.blocks."):
            groups["other"].append(parameter)
        elif key.startswith("trunk.blocks.0."):
            groups["block"].append(parameter)
    sides = {
        "literal average": case.literal.move_average,
        "product average": partial(case.product.state.ema.update, case.product.network),
    }
    for group, parameters in groups.items():
        sides[f"literal {group}"] = partial(LiteralMuon(parameters).step, LR)
        sides[f"product {group}"] = Muon(parameters, LR).step
    found = medians(sides, rounds=1)
    depth = case.product.network.config.depth
    return {
        side: depth * found[f"{side} block"] + found[f"{side} other"] + found[f"{side} average"]
        for side in ("literal", "product")
    }


def checkpoint_seconds(product: ProductStep, folder: Path) -> float:
    """The longer of two saves' hold on the thread that trains: the first makes room for the copy."""
    state = product.state
    for parameter in product.network.parameters():
        kinds = kinds_of(state.optimizer, parameter)
        state.optimizer.state[parameter] = {kind: torch.zeros_like(parameter) for kind in kinds}
    blocked, written = [], []
    with Saver(folder / "checkpoints", keep=1) as saver:
        for step in (1, 2):
            state.step = step
            blocked.append(seconds_of(lambda: saver.save(state.checkpoint({"metrics_bytes": 0}))))
            written.append(seconds_of(saver.wait))
    print(
        f"ELF-B: a checkpoint blocks for {max(blocked):.2f} s; it is on the disk {max(written):.1f} s later"
    )
    return max(blocked)
