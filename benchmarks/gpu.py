"""ELF-B's training step on one large GPU: the algorithm as it is written down against the product's.

    benchmarks/gpu.sh [--rows 64] [--seconds 240] [--device cpu --tiny]

Whole steps, as training makes them: loss, gradients, clip, Muon, averaged weights; bf16 blocks, float32 projections
and heads. The literal side (the tests' oracle) makes three passes over every row and logits of every position; both
have the same optimiser. Latents come from page-locked memory (``stored``: a disk is not measured) or from a random
encoder of t5-small's shape in the same step (``live``). Decode and self-conditioned rows are as many as on average.
MFU: the product's operations a second (``elf.stages.model.flops``), on either side, of the bf16 matrix product's
rate measured here. First of all losses and gradients are compared with a CPU's.

Only torch is imported, and of this checkout what needs nothing else; nothing has to be installed.
"""

import argparse
import gc
import json
import math
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import checkout  # noqa: F401  # before anything of elf
import torch
from gpu_step import ELF_B, OBJECTIVE, T5_SMALL, TINY, TINY_T5, Bench, Found, Way, agreement, rate
from measuring import Bar, finish

from elf.stages.model.flops import step_flops
from elf.stages.model.speeding import compile_blocks

ROW_BYTES = 2.0e9
"""What a row of the literal step takes, about: how many are tried where no number is named."""
NO_TIME, NO_ROOM = "left out, for want of time", "out of memory"
WARM = 40.0
"""Seconds that a compiled way may take before its first timed step."""
# What is worth most comes first, for what the time does not reach is left out; eager before compiled.
WAYS = (
    Way("literal", "stored"),
    Way("product", "stored"),
    Way("literal", "live"),
    Way("product", "live"),
    Way("product", "stored", compiled=True),
    Way("product", "live", compiled=True),
    Way("product", "stored", compiled=True, again=True),
    Way("literal", "stored", compiled=True),
    Way("product", "stored", compiled=True, tf32=True),
)


HEAD = f"{'side':8} {'blocks':15} {'latents':7} {'ms/step':>8} {'tokens/s':>9} {'MFU':>6} {'peak GB':>8} {'warm s':>7}"


@dataclass(frozen=True, slots=True)
class Scale:
    """What turns seconds a step into the table's figures: tokens and operations of a step, operations a second."""

    tokens: int
    flops: float
    rate: float

    def figures(self, found: Found) -> dict[str, float]:
        return {"tokens_per_s": self.tokens / found.seconds, "mfu": self.flops / found.seconds / self.rate}


def main() -> None:
    """Measure what the time allows; exit 1 where the sides disagree or a way failed."""
    began = time.perf_counter()
    arguments = parse()
    device = torch.device(arguments.device)
    tiny = arguments.tiny
    model, encoder = (TINY, TINY_T5) if tiny else (ELF_B, T5_SMALL)
    backend, size, each = ("eager", 64, 0.02) if tiny else ("inductor", 8192, 3.0)
    rates = {name: rate(device, getattr(torch, name), size) for name in ("bfloat16", "float32")}
    where = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    told = ", ".join(f"{name} {found / 1e12:.3g} TFLOP/s" for name, found in rates.items())
    print(f"{where}, torch {torch.__version__}\nMatrix products: {told}", flush=True)
    bars = agreement(model, device, backend)
    gc.collect()
    torch._dynamo.reset()  # what was compiled for the comparison is not met again
    rows = arguments.rows or (16 if tiny else rows_that_fit(device))
    print(
        f"{rows} rows of {model.length}, {model.depth} blocks of {model.hidden}, V {model.vocabulary:,}\n{HEAD}"
    )
    bench = Bench(model, encoder, rows, device)
    scale = Scale(rows * model.length, rows * step_flops(model, OBJECTIVE, model.length), rates["bfloat16"])
    results: dict[Way, Found] = {}
    for way in WAYS:
        prepare(bench, way, backend)
        results[way] = attempt(bench, way, each, left=arguments.seconds - (time.perf_counter() - began))
        print(table_line(way, results[way], scale), flush=True)
        write({"device": where, "torch": torch.__version__, "rows": rows, "rates": rates}, results, scale)
    parts = {"encoder": lambda: bench.batch("live"), "clip": bench.clip, "Muon and average": bench.update}
    alone = {name: bench.timed(call, each / 3) for name, call in parts.items()}
    print("Of it: " + ", ".join(f"{name} {found * 1e3:.1f} ms" for name, found in alone.items()))
    if times := ratios(results):
        print("Literal / product: " + ", ".join(f"{name} {found:.2f}" for name, found in times.items()))
    broken = [way for way, found in results.items() if found.failed and not excused(way, found)]
    finish([*bars, Bar("ways that failed", len(broken), 0, at_most=True)])


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="ELF-B's training step on one GPU; see the head of this file."
    )
    parser.add_argument("--rows", type=int, help="rows of a step; as many as fit the memory by default")
    parser.add_argument("--seconds", type=float, default=240.0, help="no way is begun that would end later")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a toy network, to try the program itself")
    arguments = parser.parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch finds no CUDA device here; --device cpu --tiny tries the program itself")
    return arguments


def rows_that_fit(device: torch.device) -> int:
    """A power of two."""
    if device.type != "cuda":
        return 2
    free, _ = torch.cuda.mem_get_info()
    return 2 ** int(math.log2(max(1.0, free / ROW_BYTES)))


def prepare(bench: Bench, way: Way, backend: str) -> None:
    """Have the blocks run as the way says; compiled ones stay so."""
    if way.compiled and not bench.compiled:
        compile_blocks(bench.network, backend=backend)
        bench.compiled = True
    for trunk in bench.network.trunks:
        trunk.checkpointing = way.again


def attempt(bench: Bench, way: Way, seconds: float, *, left: float) -> Found:
    """The way's figures, or why there are none."""
    if left < 3 * seconds + (WARM if way.compiled else 0.0):
        return Found(failed=NO_TIME)
    try:
        return bench.measure(way, seconds)
    except torch.OutOfMemoryError:
        failed = NO_ROOM
    except RuntimeError as error:
        failed = str(error).strip().split("\n")[0]
    bench.optimizer.zero_grad(set_to_none=True)
    gc.collect()
    if bench.device.type == "cuda":
        torch.cuda.empty_cache()
    return Found(failed=failed)


def excused(way: Way, found: Found) -> bool:
    return found.failed == NO_TIME or (found.failed == NO_ROOM and way.side == "literal")


def table_line(way: Way, found: Found, scale: Scale) -> str:
    begin = f"{way.side:8} {way.blocks:15} {way.latents:7}"
    if found.failed:
        return f"{begin} {found.failed}"[:80]
    figures = scale.figures(found)
    return (
        f"{begin} {found.seconds * 1e3:8.1f} {figures['tokens_per_s']:9,.0f} {figures['mfu']:6.1%} "
        f"{found.peak / 1e9:8.1f} {found.begun:7.1f}"
    )


def ratios(results: Mapping[Way, Found]) -> dict[str, float]:
    """How many times the literal step's seconds the product's fit into, like with like."""
    found = {(way.latents, way.blocks, way.side): each.seconds for way, each in results.items()}
    return {
        f"{blocks}, {latents}": found[latents, blocks, "literal"] / seconds
        for (latents, blocks, side), seconds in found.items()
        if side == "product" and seconds and found.get((latents, blocks, "literal"))
    }


def write(told: Mapping[str, Any], results: Mapping[Way, Found], scale: Scale) -> None:
    """``gpu.json`` in the folder $OUT, as far as it got."""
    if not os.environ.get("OUT"):
        return
    lines = [
        {**asdict(way), **asdict(found), **({} if found.failed else scale.figures(found))}
        for way, found in results.items()
    ]
    path = Path(os.environ["OUT"]) / "gpu.json"
    path.write_text(json.dumps({**told, **asdict(scale), "ways": lines}, indent=1) + "\n")


if __name__ == "__main__":
    main()
