"""Measures this machine for plans: ``python -m elf.stages.probe`` prints what ``elf.stages.machine.Speed`` holds.

Each figure is the best of many short tries. What one thread does is timed by that thread's own clock, which stands
still while others have the core. What all cores do together can only be timed by the wall; on a busy machine, where
that says nothing, it is a share of so many times one. It takes some two seconds besides the import of torch.
"""

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime

import torch

from elf.stages.machine import Speed
from elf.stages.memory import cores, keep_freed_memory

SHAPES = {64: 1024, 256: 256, 1024: 128}
"""Width of a product and its positions: a few milliseconds at most."""
GPU_SHAPES = {256: 32768, 1024: 32768, 4096: 8192}
BUDGET = 0.12
"""Seconds spent on one figure."""
PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
CALLS, TURNS = 1000, 100_000
BUSY = 0.7
"""Processes that want a core, for each core, from which on the machine counts as busy."""
GAIN = 0.85
"""What a further core is taken to add, of what one does alone, where that could not be measured."""


def probe() -> Speed:
    """Measure everything."""
    load = os.getloadavg()[0]
    keep_freed_memory()
    torch.set_num_threads(1)
    one = _ladders(SHAPES, "cpu", time.thread_time)
    call, loops = _call("cpu", time.thread_time), TURNS / best(_turn, time.thread_time)
    busy = load > BUSY * cores()
    if cores() == 1 or busy:
        everything = _times(one, 1 + GAIN * (cores() - 1))
    else:
        torch.set_num_threads(cores())
        everything = _ladders(SHAPES, "cpu", time.perf_counter)
    cuda = torch.cuda.is_available()
    return Speed(
        measured=datetime.now(UTC).date().isoformat(),
        busy=busy,
        one=one,
        all=everything,
        gpu=_ladders(GPU_SHAPES, "cuda", time.perf_counter) if cuda else {},
        call=call,
        launch=_call("cuda", time.perf_counter) if cuda else call,
        loops=loops,
    )


def product_rate(device: str, precision: str) -> float:
    """Operations a second of this process's threads, or of one GPU, in its best products, float32 or ``precision``."""
    shapes = GPU_SHAPES if device == "cuda" else {1024: SHAPES[1024]}
    return max(
        _product(width, positions, PRECISIONS[name], device, time.perf_counter)
        for name in {"float32", precision}
        for width, positions in shapes.items()
    )


def best(work: Callable[[], object], clock: Callable[[], float]) -> float:
    """Seconds of the fastest of the tries that fit into the budget, of two at least."""
    fastest, until, tries = float("inf"), time.perf_counter() + BUDGET, 0
    while tries < 2 or time.perf_counter() < until:
        began = clock()
        work()
        fastest = min(fastest, clock() - began)
        tries += 1
    return max(fastest, 1e-9)


def _ladders(
    shapes: Mapping[int, int], device: str, clock: Callable[[], float]
) -> dict[str, dict[int, float]]:
    return {
        name: {width: _product(width, positions, dtype, device, clock) for width, positions in shapes.items()}
        for name, dtype in PRECISIONS.items()
    }


def _times(ladders: Mapping[str, Mapping[int, float]], factor: float) -> dict[str, dict[int, float]]:
    return {
        name: {width: rate * factor for width, rate in ladder.items()} for name, ladder in ladders.items()
    }


def _product(
    width: int, positions: int, dtype: torch.dtype, device: str, clock: Callable[[], float]
) -> float:
    """Operations a second of a product of (positions × width) with (width × width)."""
    generator = torch.Generator(device).manual_seed(0)  # a run that asks draws nothing from the global one
    left = torch.rand(positions, width, device=device, generator=generator).to(dtype)
    right = torch.rand(width, width, device=device, generator=generator).to(dtype)

    def work() -> None:
        torch.mm(left, right)
        if device == "cuda":
            torch.cuda.synchronize()

    return 2.0 * positions * width * width / best(work, clock)


def _call(device: str, clock: Callable[[], float]) -> float:
    small = torch.rand(8, 8, device=device)

    def work() -> None:
        for _ in range(CALLS):
            torch.add(small, small)
        if device == "cuda":
            torch.cuda.synchronize()

    return best(work, clock) / CALLS


def _turn() -> int:
    total = 0
    for number in range(TURNS):
        total += number * number & 7
    return total


if __name__ == "__main__":
    print(json.dumps(asdict(probe())))
