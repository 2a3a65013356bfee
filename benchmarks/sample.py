"""The sample stage against a bare loop of the network's calls, and what its decode takes of memory.

    .venv/bin/python benchmarks/sample.py [--threads 1] [--texts 24] [--steps 8]

A network of 256 × 6 layers with t5-small's width and vocabulary and random weights; rows of 128. The stage is timed
whole: weights read and checked, noise drawn, texts sampled, recorded, read out and written. The bare loop calls the
network on batches of the same shapes, once a step and once more for the ids, and throws away what it says. Memory is
told before anything else ran, in forked children: the decode against the usual one, which makes all logits first.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator, Mapping
from io import StringIO
from itertools import count
from pathlib import Path
from typing import Any, Literal

import torch
from measuring import HALF, Bar, finish, has_half, medians, peak_growth

from elf.cache.store import Artifact
from elf.pipeline.progress import LineProgress
from elf.pipeline.stage import StageContext
from elf.stages import sample
from elf.stages.compute import SampleCompute
from elf.stages.model.decoding import decode
from elf.stages.sampling import Sampling

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support"))

from judging import make_artifact
from tokens import SPECIALS, make_tokens
from toy_sampling import make_model, setting

LENGTH, WIDTH, VOCABULARY = 128, 512, 32100
SHAPE = {"depth": 6, "hidden": 256, "heads": 4, "bottleneck": 128}


def make_inputs(folder: Path) -> dict[str, Artifact]:
    """Tokens with the whole vocabulary and a model of random weights for them."""
    words = [f"w{number}" for number in range(VOCABULARY - len(SPECIALS))]
    rows = [" ".join(words[: 2 * LENGTH])]
    tokens = make_artifact(make_tokens(folder / "tokens", rows, words=words, length=LENGTH), "tokenize")
    return {"tokens": tokens, "model": make_model(folder / "train", tokens, width=WIDTH, **SHAPE)}


class Sides:
    """The stage and the bare loop, at one number of texts and steps."""

    def __init__(
        self, inputs: Mapping[str, Artifact], folder: Path, *, threads: int, texts: int, steps: int
    ) -> None:
        self.inputs, self.folder, self.texts, self.steps = inputs, folder, texts, steps
        self.compute = SampleCompute(device="cpu", threads=threads)
        self.turns: Iterator[int] = count()
        self.sampling, _ = sample.prepare(self.section("float32"), self.context(), torch.device("cpu"))

    def section(self, precision: Literal["float32", "bf16"]) -> Any:
        return setting(steps=self.steps, count=self.texts, seeds=(0,), precision=precision)

    def context(self) -> StageContext:
        out = self.folder / f"out-{next(self.turns)}"
        out.mkdir()
        return StageContext(out, self.inputs, self.compute, LineProgress(StringIO()))

    def stage(self, precision: Literal["float32", "bf16"] = "float32") -> None:
        facts = sample.run(self.section(precision), self.context())
        assert facts["texts"] == self.texts

    @torch.inference_mode()
    def bare(self) -> None:
        size = min(self.texts, sample.POSITIONS["cpu"] // LENGTH)
        for first in range(0, self.texts, size):
            call_network(self.sampling, min(size, self.texts - first), self.steps)


def call_network(sampling: Sampling, rows: int, steps: int) -> None:
    """The calls that sampling so many rows cannot do without."""
    network, config = sampling.trained.network, sampling.config
    given_BLC = torch.randn(rows, LENGTH, 2 * WIDTH)
    ones_B = torch.ones(rows)
    for step in range(steps):
        network.flow(network(given_BLC, ones_B * step / steps, guidance_B=ones_B * config.guidance))
    decode(network, given_BLC[:, :, :WIDTH], config)


def memory(sampling: Sampling, rows: int) -> Bar:
    """Peak growth of reading ids from latents."""
    network, config = sampling.trained.network, sampling.config
    z_BLD, ones_B = torch.randn(rows, LENGTH, WIDTH), torch.ones(rows)
    given_BLC = torch.cat([z_BLD, torch.zeros_like(z_BLD)], dim=-1)

    @torch.inference_mode()
    def usual() -> None:
        hidden = network(given_BLC, ones_B, guidance_B=ones_B * config.guidance, mode_B=ones_B)
        network.logits(hidden.h_BLH).argmax(dim=-1)

    usual_bytes = peak_growth(usual)
    ours = peak_growth(lambda: decode(network, z_BLD, config))
    logits = rows * LENGTH * VOCABULARY * 4
    print(
        f"decode of {rows} × {LENGTH} positions: all logits, {logits / 1e6:,.0f} MB, first: peak grows by "
        f"{usual_bytes / 1e6:,.0f} MB, the product's by {ours / 1e6:,.0f}"
    )
    return Bar("memory of the decode / with full logits", ours / usual_bytes, 0.5, at_most=True)


def speed(sides: Sides) -> list[Bar]:
    """Texts a second."""
    timed = {"bare loop, float32": sides.bare, "stage, float32": sides.stage}
    if has_half():
        timed["stage, bf16"] = lambda: sides.stage("bf16")
    seconds = medians(timed, rounds=2)
    calls = sides.steps + 1
    print(f"{'':<20}  {'texts/s':>8}  {'calls of a row/s':>17}")
    for name, each in seconds.items():
        print(f"{name:<20}  {sides.texts / each:>8.2f}  {calls * sides.texts / each:>17.1f}")
    bare = seconds["bare loop, float32"]
    bars = [Bar("float32: stage / bare loop, texts a second", bare / seconds["stage, float32"], 0.95)]
    if has_half():
        return [*bars, Bar("bf16: stage / bare float32 loop", bare / seconds["stage, bf16"], 1.5)]
    print(f"bf16: not this machine, its CPU has none of {', '.join(HALF)}")
    return bars


def main() -> None:
    parser = argparse.ArgumentParser(description="The sample stage against a bare loop of network calls.")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--texts", type=int, default=24)
    parser.add_argument("--steps", type=int, default=8)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    with tempfile.TemporaryDirectory() as name:
        inputs = make_inputs(Path(name))
        sides = Sides(inputs, Path(name), threads=given.threads, texts=given.texts, steps=given.steps)
        call_network(sides.sampling, 1, 1)  # all code in memory before memory is told
        bars = [memory(sides.sampling, given.texts)]
        bars += speed(sides)
    finish(bars)


if __name__ == "__main__":
    main()
