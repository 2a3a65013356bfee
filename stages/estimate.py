"""What a plan will cost, before anything runs: rows, bytes on disk and seconds of each step.

Sizes of what exists are read from manifests; the rest is worked out from settings and from the ``expect_*``
hints of a configuration. Times are floating-point operations over a round figure per device, good to a
factor of two or three.
"""

import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from elf.cache.store import Artifact
from elf.pipeline.plan import Plan, Planned
from elf.pipeline.wording import rows_of, size_of
from elf.stages.config import Asset, Control, Encode, Evaluate, Experiment, Model, Pretrain, Sample, Train
from elf.stages.experiment import TokenizeStep
from elf.stages.model.config import SIZES

CPU_FLOPS, GPU_FLOPS = 45e9, 200e12
"""Operations a second: one CPU core in float32, one data-centre GPU in bfloat16."""
DOWNLOAD, TOKENS = 25e6, 250_000
"""Bytes a second from the network; tokens a second made by one core."""
LETTERS = 4.5
"""Bytes of text in a token, for a corpus of which only the size is known."""
USEFUL = 0.3
"""Share of a pretrained model's weights that work on each token: not its embedding table, not a decoder."""
OVERHEAD: Mapping[str, float] = {
    "fetch": 1,
    "tokenizer": 2,
    "tokenize": 3,
    "pretrain": 3,
    "encode": 3,
    "train": 10,
    "weights": 5,
    "sample": 1,
    "control": 1,
    "evaluate": 2,
    "report": 3,
}
"""Seconds a step takes whatever its size: imports, child processes, loading weights."""
BYTES_PER_TOKEN = 10
"""Of a sampled text: its characters and its ids as JSON."""
DTYPE_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}


@dataclass(frozen=True, slots=True)
class Machine:
    """What the estimates are for."""

    cores: int
    gpus: int

    def flops(self, processes: int = 1) -> float:
        """Operations a second that a stage with so many processes gets."""
        return GPU_FLOPS * min(processes, self.gpus) if self.gpus else CPU_FLOPS * self.cores

    def __str__(self) -> str:
        cores = f"{self.cores} CPU core{'' if self.cores == 1 else 's'}"
        return f"{cores}, {self.gpus or 'no'} GPU{'s' if self.gpus > 1 else ''}"


@dataclass(frozen=True, slots=True)
class Estimate:
    """A step's expected cost; None where nothing is known. ``found`` says it is there already, at no cost."""

    planned: Planned
    found: Artifact | None
    rows: int | None
    bytes: int | None
    seconds: float | None


@dataclass(frozen=True, slots=True)
class _Cost:
    rows: int | None = None
    bytes: float | None = None
    seconds: float | None = None


def this_machine() -> Machine:
    """Cores this process may use and NVIDIA GPUs the kernel knows, found without importing torch."""
    gpus = Path("/proc/driver/nvidia/gpus")
    return Machine(len(os.sched_getaffinity(0)), len(list(gpus.iterdir())) if gpus.is_dir() else 0)


def estimate_plan(
    plan: Plan, experiment: Experiment, find: Callable[[Planned], Artifact | None], machine: Machine
) -> tuple[Estimate, ...]:
    """One estimate per step, inputs first. ``find`` looks a step up in the store."""
    work = _Estimator(experiment, machine)
    return tuple(work.add(planned, find(planned)) for planned in plan)


def total_bytes(estimates: Iterable[Estimate]) -> int:
    """Bytes still to be written, each key once; steps of unknown size count as nothing."""
    missing = {each.planned.key: each.bytes or 0 for each in estimates if each.found is None}
    return sum(missing.values())


def total_seconds(estimates: Iterable[Estimate]) -> float:
    """Seconds still to be spent, each key once."""
    missing = {each.planned.key: each.seconds or 0.0 for each in estimates if each.found is None}
    return sum(missing.values())


class _Estimator:
    """Walks a plan, carrying what is known of each step to those that take it as an input."""

    def __init__(self, experiment: Experiment, machine: Machine) -> None:
        self.experiment, self.machine = experiment, machine
        self.known: dict[str, Estimate] = {}

    def add(self, planned: Planned, found: Artifact | None) -> Estimate:
        name, stage = planned.step.name, planned.step.spec.name
        if found is not None:
            made = Estimate(planned, found, rows_of(found), size_of(found), 0.0)
        else:
            cost = self.cost(planned)
            seconds = None if cost.seconds is None else cost.seconds + OVERHEAD[stage]
            size = None if cost.bytes is None else int(cost.bytes)
            made = Estimate(planned, None, cost.rows, size, seconds)
        self.known[name] = made
        return made

    def cost(self, planned: Planned) -> _Cost:
        section = planned.step.section
        match planned.step.spec.name, section:
            case "fetch", _:
                size = _expected(self.experiment, planned.step.name)
                return _Cost(bytes=size, seconds=None if size is None else size / DOWNLOAD)
            case "tokenizer", _:
                return _Cost(bytes=100_000, seconds=0.0)
            case "tokenize", TokenizeStep():
                return self.tokenize(planned, section)
            case "pretrain", Pretrain():
                return self.pretrain(section)
            case "encode", Encode():
                return self.encode(planned, section)
            case "train", Train():
                return self.train(planned, section)
            case "weights", _:
                return _Cost(bytes=self.known[planned.step.inputs["checkpoint"]].bytes, seconds=0.0)
            case "sample", Sample():
                return self.sample(planned, section)
            case "control", Control():
                length = self.experiment.tokenize.length
                return _Cost(section.count, section.count * length * BYTES_PER_TOKEN, 0.0)
            case "evaluate", Evaluate():
                return self.evaluate(planned)
            case "report", _:
                return _Cost(bytes=500_000, seconds=0.0)
            case _:
                return _Cost()

    def tokenize(self, planned: Planned, section: TokenizeStep) -> _Cost:
        tokens, length = section.data.expect_tokens, section.tokenize.length
        if tokens is None:
            size = self.known[planned.step.inputs["documents"]].bytes
            if size is None:
                return _Cost()
            tokens = size / LETTERS
        kept = section.data.share * (
            1 - section.holdout if section.split == "train" else section.holdout or 1
        )
        rows = int(tokens * kept) // length
        if section.tokenize.rows is not None and section.split == "train":
            rows = min(rows, section.tokenize.rows)
        return _Cost(rows, rows * length * 2.5, rows * length / TOKENS / self.machine.cores)

    def pretrain(self, section: Pretrain) -> _Cost:
        weights = self.pretrain_weights(section)
        tokens = section.steps * section.batch * self.experiment.tokenize.length
        return _Cost(bytes=weights * 4, seconds=6 * weights * tokens / self.machine.flops())

    def pretrain_weights(self, section: Pretrain) -> float:
        layer = 4 * section.width**2 + 2 * section.width * section.feed_forward
        return section.width * self.vocabulary() + 2.5 * section.layers * layer

    def encode(self, planned: Planned, section: Encode) -> _Cost:
        rows, width = self.known[planned.step.inputs["tokens"]].rows, self.width()
        if rows is None or width is None:
            return _Cost(rows)
        positions = rows * self.encoded_positions()
        size = positions * width * DTYPE_BYTES[section.dtype] + rows * 16
        per_token = self.encoder_flops(planned)
        seconds = None if per_token is None else positions * per_token / self.machine.flops()
        return _Cost(rows, size, seconds)

    def encoded_positions(self) -> int:
        """States stored per row at most: the row, or its condition and twice its target for pairs."""
        tokenize = self.experiment.tokenize
        if not self.experiment.data.train.pairs or tokenize.max_source is None:
            return tokenize.length
        return tokenize.max_source + 2 * (tokenize.length - tokenize.max_source)

    def encoder_flops(self, planned: Planned) -> float | None:
        if self.experiment.pretrain is not None:
            return 2 * self.pretrain_weights(self.experiment.pretrain)
        weights = self.weights(planned.step.inputs["encoder"])
        return None if weights is None else 2 * USEFUL * weights

    def weights(self, step: str) -> float | None:
        """Numbers in a fetched model, at four bytes each."""
        size = self.known[step].bytes
        return None if size is None else size / 4

    def train(self, planned: Planned, section: Train) -> _Cost:
        rows, width = self.known[planned.step.inputs["tokens"]].rows, self.width()
        if width is None or (section.steps is None and rows is None):
            return _Cost()
        body, head = self.parameters(width)
        steps = section.steps or math.ceil((section.epochs or 0) * math.ceil((rows or 0) / section.batch))
        tokens = steps * section.batch * self.experiment.tokenize.length
        flops = tokens * (3.4 * self.forward(body) + 0.6 * 2 * head)
        processes = planned.step.compute.processes
        size = 4 * (body + head) * 4 + steps * 200
        return _Cost(bytes=size, seconds=flops / self.machine.flops(processes))

    def sample(self, planned: Planned, section: Sample) -> _Cost:
        width = self.width()
        pairs = self.experiment.data.train.pairs
        count = self.known[planned.step.inputs["tokens"]].rows if pairs else section.count
        if width is None or count is None:
            return _Cost()
        texts = count * len(section.seeds)
        body, head = self.parameters(width)
        calls = section.steps * (2 if pairs and section.input_guidance != 1 else 1) + 1
        tokens = texts * self.experiment.tokenize.length
        flops = tokens * (calls * self.forward(body) + 2 * head)
        return _Cost(texts, tokens * BYTES_PER_TOKEN, flops / self.machine.flops())

    def evaluate(self, planned: Planned) -> _Cost:
        texts = self.known[planned.step.inputs["samples"]].rows
        size = None if texts is None else texts * 400
        if "judge" not in planned.step.inputs:
            return _Cost(texts, size, 0.0)
        weights = self.weights(planned.step.inputs["judge"])
        if texts is None or weights is None:
            return _Cost(texts, size)
        tokens = texts * self.experiment.tokenize.length
        return _Cost(texts, size, 2 * weights * tokens / self.machine.flops())

    def width(self) -> int | None:
        """d of the encoder."""
        if self.experiment.pretrain is not None:
            return self.experiment.pretrain.width
        return self.experiment.encode.expect_width

    def vocabulary(self) -> int:
        """Entries of the decode head."""
        tokenize = self.experiment.tokenize
        if tokenize.subwords is not None:
            return tokenize.subwords.size + 100
        return 12_000 if tokenize.vocabulary == "used" else 32_100

    def parameters(self, width: int) -> tuple[float, float]:
        """Weights of trunk and projections, and of the decode head."""
        depth, hidden = _shape(self.experiment.train.model)
        middle = self.experiment.train.model.bottleneck or hidden
        body = depth * 12 * hidden**2 + 3 * width * middle + middle * hidden + width * hidden
        return body, width * width + width * self.vocabulary()

    def forward(self, body: float) -> float:
        """Operations of one forward pass for one position, attention included."""
        depth, hidden = _shape(self.experiment.train.model)
        return 2 * body + 4 * self.experiment.tokenize.length * hidden * depth


def _shape(model: Model) -> tuple[int, int]:
    size = SIZES[model.size] if model.size is not None else None
    depth, hidden = model.depth or (size and size.depth), model.hidden or (size and size.hidden)
    assert depth is not None, "the section checks that its shape is known"
    assert hidden is not None, "the section checks that its shape is known"
    return depth, hidden


def _expected(experiment: Experiment, step: str) -> int | None:
    """The size that the configuration expects of the asset behind a fetch step."""
    judge, data = experiment.evaluate.judge, experiment.data
    assets: dict[str, Asset | None] = {
        "fetch-train": data.train.asset,
        "fetch-validation": data.validation.asset if data.validation is not None else None,
        "fetch-test": data.test.asset if data.test is not None else None,
        "fetch-tokenizer": experiment.tokenize.tokenizer,
        "fetch-encoder": experiment.encode.encoder,
        "fetch-weights": experiment.weights.asset if experiment.weights is not None else None,
        "fetch-judge": judge.asset if judge is not None else None,
    }
    asset = assets[step]
    if asset is None:
        return None
    path = Path(asset.uri.removeprefix("path:")).expanduser()
    if asset.uri.startswith("path:") and path.is_file():
        return path.stat().st_size
    return asset.expect_bytes
