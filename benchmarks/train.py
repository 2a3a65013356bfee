"""The product's whole training step against the algorithm as it is written down, at equal draws.

    .venv/bin/python benchmarks/train.py [--threads 1]

Two networks: 256 × 6 layers, where head and encoder weigh most, with everything in the loop; ELF-B, where the blocks
do. Both sides begin with the same weights and take turns step by step, on steps in which as many rows decode and
condition themselves as do on average. The product reads its latents from a store through the thread that training
reads them with; the other side encodes. Memory is told before anything else ran, in forked children.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from large_network import large
from literal_step import LiteralEncoder
from measuring import Bar, finish, peak_growth
from training_case import LR, Case, compare, ratio, seconds_of

from elf.pipeline.stage import Compute
from elf.stages.memory import keep_freed_memory
from elf.stages.team import Team

SMALL = {"depth": 6, "hidden": 256, "heads": 4}
ELF_B = {"depth": 12, "hidden": 768, "heads": 12}


def warm_up(case: Case) -> None:
    """Have all code that a step needs in memory, which else would count as a step's."""
    for fed in case.fed():
        case.literal.add_gradients(case.literal.encode(fed.raw.ids_BL), fed.draws)
        case.product.add_gradients(fed)


def memory(make: Callable[[str], Case]) -> Bar:
    """Peak growth of loss and gradients: the other side's as the C library has it, the product's with the settings
    that its processes begin with, which stay."""
    case = make("literal")
    fed = next(case.fed())
    batch = case.literal.encode(fed.raw.ids_BL)
    theirs = peak_growth(lambda: case.literal.add_gradients(batch, fed.draws))
    keep_freed_memory()
    case = make("product")
    fed = next(case.fed())
    ours = peak_growth(lambda: case.product.add_gradients(fed))
    print(
        f"256 × 6, L 256: a step's peak grows by {theirs / 1e6:,.0f} MB, the product's by {ours / 1e6:,.0f}"
    )
    return Bar("256 × 6, L 256: memory, literal / product", theirs / ours, 2.4)


def small(case: Case) -> list[Bar]:
    """Everything in the loop."""
    name, watch = "256 × 6", case.watch
    bars = compare(name, case)
    case.literal.advance(LR)  # no first time is timed
    case.product.state.advance(LR)
    for fed in case.fed():
        case.literal.step(fed.raw.ids_BL, fed.draws, lr=LR)
        case.product.step(fed, lr=LR)
    last = next(case.fed())
    parts = sum(map(seconds_of, case.literal.parts(last.raw.ids_BL, last.draws, lr=LR)))
    bars = [bar for bar in bars if "operations, lit" not in bar.name]
    for part, target in (("whole", 3.0), ("loss", 2.4), ("optimiser", 3.0)):
        bars.append(ratio(name, part, watch, target))
    literal = watch.mean("literal whole")
    print(
        f"{name}: literal {literal:.2f} s a step, its encoder {watch.mean('literal encoder'):.2f}; its parts timed "
        f"alone {parts:.2f}"
    )
    return [
        *bars,
        Bar(f"{name}: literal's time / its parts timed alone", literal / parts, 1.15, at_most=True),
    ]


def waiting(case: Case, *, steps: int = 3) -> Bar:
    """The share of a run of product steps in which rows were not there; the first row is everybody's to wait for."""
    waited, ended, began = 0.0, None, time.perf_counter()
    for fed in case.fed(range(steps + 1)):
        now = time.perf_counter()
        if ended is None:
            began = now
        else:
            waited += now - ended
        case.product.step(fed, lr=LR)
        ended = time.perf_counter()
    return Bar(
        "256 × 6: waiting for rows, share of the time",
        waited / (time.perf_counter() - began),
        0.02,
        at_most=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description="The training step against the algorithm as it is written down."
    )
    parser.add_argument("--threads", type=int, default=1)
    threads = parser.parse_args().threads
    torch.set_num_threads(threads)
    team, encoder = Team(Compute(device="cpu", threads=threads)), LiteralEncoder()
    with tempfile.TemporaryDirectory() as name:
        make = partial(Case.of, team=team, encoder=encoder)
        warm_up(make(Path(name) / "tiny", model=SMALL | {"depth": 1}, batch=4, length=16, steps=2))
        bars = [memory(lambda side: make(Path(name) / side, model=SMALL, batch=16, length=256, steps=1))]
        six = make(Path(name) / "six", model=SMALL, batch=16, length=128, steps=2)
        bars += [*small(six), waiting(six)]
        del six
        bars += large(make(Path(name) / "b", model=ELF_B, batch=4, length=128, steps=1), Path(name))
    finish(bars)


if __name__ == "__main__":
    main()
