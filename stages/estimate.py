"""What a plan will cost, before anything runs: rows, tokens, bytes on disk and seconds of each step.

Sizes of what exists are read from manifests; the rest is worked out from settings and from the ``expect_*`` hints of
a configuration. Seconds are counted operations over the measured speed of the machine (``elf.stages.workload``,
``elf.stages.machine``), or bytes over that of the disk where these take longer, and what a step takes at least.
"""

from collections.abc import Callable
from dataclasses import dataclass

from elf.cache.store import Artifact
from elf.pipeline.plan import Plan, Planned
from elf.pipeline.stage import Compute
from elf.pipeline.wording import about, amount_text, rows_of, size_of
from elf.stages.compute import TrainCompute
from elf.stages.config import Control, Encode, Evaluate, Experiment, Pretrain, Sample, Source
from elf.stages.experiment import TokenizeStep
from elf.stages.glance import glance
from elf.stages.hints import expected_size, local_path, vocabulary_of, width_of
from elf.stages.machine import Machine, Work
from elf.stages.model.config import ModelConfig
from elf.stages.model.flops import count_weights
from elf.stages.pace import flops_text, percent
from elf.stages.steps import training_length
from elf.stages.totals import Estimate
from elf.stages.train_settings import Train, Training
from elf.stages.workload import (
    PRETRAIN_CALLS,
    TRAINED_IN,
    AnyConfig,
    EncoderShape,
    encoded_positions,
    encoding,
    following,
    live_positions,
    network_of,
    pretrained_shape,
    read_shape,
    row_parts,
    sampling,
    training,
)

DOWNLOAD, TOKENS = 25e6, 250_000
"""Bytes a second from the network; tokens a second made by one core of the reference."""
LETTERS = 4.5
"""Bytes of text in a token, for a corpus of which only the size is known."""
OVERHEAD = {
    "fetch": 1,
    "tokenizer": 3,
    "tokenize": 1,
    "pretrain": 7,
    "encode": 1,
    "train": 10,
    "distill": 11,
    "weights": 5,
    "sample": 0.5,
    "control": 0.1,
    "evaluate": 0.3,
    "report": 3,
}
"""Seconds a step takes whatever its size, on the reference: imports, child processes, loading weights."""
LAUNCHING = 9
"""Seconds more where sampling launches processes for itself, on the reference."""
LOADED = 40e6
"""Weights of a judge a second that are brought into memory, on the reference."""
BYTES_PER_TOKEN = 10
"""Of a sampled text: its characters and its ids as JSON."""
DTYPE_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}
METRICS_BYTES = 850
"""Of one step's line of metrics."""
STATE_BYTES = {"muon": 12, "adamw": 16}
"""Of a weight in a checkpoint: itself, its average, its moments."""
SAMPLED_POSITIONS = {False: 4096, True: 65536}
"""Positions sampled at once on a CPU and on a GPU, where the settings name no number of rows."""


@dataclass(frozen=True, slots=True)
class _Cost:
    rows: int | None = None
    tokens: float | None = None
    bytes: float | None = None
    seconds: float | None = None
    sure: bool = False
    scratch: float = 0


@dataclass(frozen=True, slots=True)
class TrainingSpeed:
    """What training comes to: operations of a step (the model's), tokens a second, and the share that is of ``peak``,
    what ``device`` does at most in products as they are here."""

    step_flops: float
    tokens_per_s: float
    mfu: float
    peak: float
    device: str

    def __str__(self) -> str:
        speed = amount_text(round(self.tokens_per_s))
        return (
            f"Training: {flops_text(self.step_flops)} a step, {about(speed)} tokens/s, "
            f"MFU {about(percent(self.mfu))} of "
            f"{flops_text(self.peak)}/s, the most of {self.device}."
        )


def estimate_plan(
    plan: Plan, experiment: Experiment, find: Callable[[Planned], Artifact | None], machine: Machine
) -> tuple[Estimate, ...]:
    """One estimate per step, inputs first. ``find`` looks a step up in the store."""
    return Estimator(experiment, machine).walk(plan, find)


class Estimator:
    """Walks a plan, carrying what is known of each step to those that take it as an input."""

    def __init__(self, experiment: Experiment, machine: Machine) -> None:
        self.experiment, self.machine = experiment, machine
        self.length = experiment.tokenize.length
        self.known: dict[str, Estimate] = {}

    def walk(self, plan: Plan, find: Callable[[Planned], Artifact | None]) -> tuple[Estimate, ...]:
        """As ``estimate_plan``."""
        return tuple(self.add(planned, find(planned)) for planned in plan)

    def add(self, planned: Planned, found: Artifact | None) -> Estimate:
        if found is None:
            made = self.fresh(planned)
        else:
            rows = rows_of(found)
            made = Estimate(planned, found, rows, self.tokens_in(found, rows), size_of(found), 0.0, sure=True)
        self.known[planned.step.name] = made
        return made

    def fresh(self, planned: Planned) -> Estimate:
        """A step whose inputs were walked over, as if it were not there."""
        cost = self.cost(planned)
        least = OVERHEAD[planned.step.spec.name] / self.machine.pace
        return Estimate(
            planned,
            None,
            cost.rows,
            _whole(cost.tokens),
            _whole(cost.bytes),
            None if cost.seconds is None else cost.seconds + least,
            sure=cost.sure,
            scratch=int(cost.scratch),
        )

    def tokens_in(self, found: Artifact, rows: int | None) -> int | None:
        """As many as its stage counted, of rows those that are in them, else whole rows."""
        for name in ("packed", "tokens"):
            counted = found.manifest.facts.get(name)
            if isinstance(counted, int):
                return counted
        return None if rows is None else rows * self.length

    def cost(self, planned: Planned) -> _Cost:
        section = planned.step.section
        match planned.step.spec.name, section:
            case "fetch", _:
                size, sure = expected_size(self.experiment, planned.step.name)
                return _Cost(bytes=size, seconds=None if size is None else size / DOWNLOAD, sure=sure)
            case "tokenizer", _:
                return _Cost(bytes=100_000, seconds=0.0)
            case "tokenize", TokenizeStep():
                return self.tokenize(planned, section)
            case "pretrain", Pretrain():
                return self.pretrain(planned, section)
            case "encode", Encode():
                return self.encode(planned, section)
            case "train" | "distill", Training():
                return self.train(planned, section)
            case "weights", _:
                return _Cost(bytes=self.known[planned.step.inputs["checkpoint"]].bytes, seconds=0.0)
            case "sample", Sample():
                return self.sample(planned, section)
            case "control", Control():
                rows = self.known[planned.step.inputs.get("heldout", planned.step.inputs["tokens"])].rows
                texts = rows if section.count is None else section.count
                if texts is None:
                    return _Cost()
                return _Cost(texts, texts * self.length, texts * self.length * BYTES_PER_TOKEN, 0.0)
            case "evaluate", Evaluate():
                return self.evaluate(planned, section)
            case "report", _:
                return _Cost(bytes=500_000, seconds=0.0)
            case _:
                return _Cost()

    def tokenize(self, planned: Planned, section: TokenizeStep) -> _Cost:
        rows = self.rows_in(self.known[planned.step.inputs["documents"]], section.data)
        if rows is None:
            return _Cost()
        kept = section.data.share * (
            1 - section.holdout if section.split == "train" else section.holdout or 1
        )
        rows = int(rows * kept)
        if section.tokenize.rows is not None and section.split == "train":
            rows = min(rows, section.tokenize.rows)
        made = rows * self.length
        workers = min(self.machine.cores, planned.step.compute.workers or self.machine.cores)
        return _Cost(rows, made, made * 2.5, made / TOKENS / workers / self.machine.pace)

    def rows_in(self, documents: Estimate, source: Source) -> float | None:
        """Of a whole corpus: as many as it has pairs, or as its text fills; by its files if they are here, else by a
        hint."""
        found = documents.found
        path = found.path / "data" if found is not None else local_path(source.asset)
        held = glance(path, source) if path is not None else None
        if held is not None and source.pairs:
            return held.records
        tokens, size = source.expect_tokens, documents.bytes if held is None else held.text
        if size is not None and (held is not None or tokens is None):
            tokens = size / LETTERS
        return None if tokens is None else tokens / self.length

    def pretrain(self, planned: Planned, section: Pretrain) -> _Cost:
        weights = (
            section.width * vocabulary_of(self.experiment, self.found("tokenize"))
            + 2.5 * pretrained_shape(section).weights
        )
        tokens = section.steps * section.batch * self.length
        calls = section.steps * PRETRAIN_CALLS * (section.layers + 1)
        work = Work(6 * weights * tokens, section.width, calls=calls, narrow=80)
        return _Cost(
            tokens=tokens, bytes=weights * 4, seconds=self.machine.seconds(work, planned.step.compute)
        )

    def encode(self, planned: Planned, section: Encode) -> _Cost:
        rows, width = self.known[planned.step.inputs["tokens"]].rows, self.width()
        stored, given = encoded_positions(self.experiment)
        tokens = None if rows is None else rows * stored
        if rows is None or width is None:
            return _Cost(rows, tokens)
        size = rows * (stored * width * DTYPE_BYTES[section.dtype] + 16)
        sure = self.known[planned.step.inputs["tokens"]].found is not None
        seconds = self.encoder_seconds(planned, planned.step.compute, rows * given)
        if seconds is not None and self.machine.disk is not None:  # writing goes on beside computing
            seconds = max(seconds, size / self.machine.disk.write)
        return _Cost(rows, tokens, size, seconds, sure)

    def encoder_seconds(self, encode: Planned, compute: Compute, positions: float) -> float | None:
        """Of so many positions through the encoder of an encode step; every core, or every GPU, has a model."""
        section, source = encode.step.section, self.known[encode.step.inputs["encoder"]]
        assert isinstance(section, Encode)
        shape: EncoderShape | None = None
        if self.experiment.pretrain is not None:
            shape = pretrained_shape(self.experiment.pretrain)
        elif source.found is not None:
            shape = read_shape(source.found.path / "data", section.layer)
        one = encoding(section, shape, source.bytes, self.length)
        if one is None:
            return None
        processes = compute.workers or max(1, self.machine.gpus)
        return self.machine.seconds(one._replace(flops=one.flops * positions), compute, processes=processes)

    def train(self, planned: Planned, section: Training) -> _Cost:
        network, steps = self.network(), self.steps(planned)
        seconds = self.training_seconds(planned)
        if network is None or steps is None or seconds is None:
            return _Cost()
        compute = planned.step.compute
        state = count_weights(network) * STATE_BYTES[section.optim.name]
        scratch = float(section.keep * state)
        if (
            isinstance(network, ModelConfig)
            and "latents" in planned.step.inputs
            and isinstance(compute, TrainCompute)
            and compute.source in ("live", "rolling")
        ):
            beside = self.live_seconds(planned, steps * section.batch)
            seconds = seconds + beside if beside is not None else None
            if compute.source == "rolling":
                states = steps * section.batch * live_positions(self.experiment) * network.width
                scratch += min(compute.window_bytes, states * DTYPE_BYTES[self.experiment.encode.dtype])
        tokens = steps * section.batch * self.length
        return _Cost(None, tokens, state + steps * METRICS_BYTES, seconds, scratch=scratch)

    def steps(self, train: Planned) -> int | None:
        """Optimiser steps of a train or distill step."""
        section, rows = train.step.section, self.known[train.step.inputs["tokens"]].rows
        assert isinstance(section, Training)
        return None if section.steps is None and rows is None else training_length(section, rows or 0).total

    def training_speed(self, train: Planned) -> TrainingSpeed | None:
        """Of a train step as it is priced: held-out measurements and an encoder beside the steps take of it too."""
        network, section, cost = self.network(), train.step.section, self.cost(train)
        if network is None or cost.tokens is None or not cost.seconds:
            return None
        assert isinstance(section, Train)
        compute = train.step.compute
        a_row = sum(row_parts(self.experiment, network))
        precision = TRAINED_IN[section.precision]
        peak = self.machine.peak(compute, precision, processes=compute.processes)
        device = self.machine.told(compute, precision, processes=compute.processes)
        tokens_per_s = cost.tokens / cost.seconds
        return TrainingSpeed(
            section.batch * a_row, tokens_per_s, tokens_per_s / self.length * a_row / peak, peak, device
        )

    def training_seconds(self, train: Planned) -> float | None:
        """Of all steps, wherever their latents come from."""
        network, steps, compute = self.network(), self.steps(train), train.step.compute
        section = train.step.section
        assert isinstance(section, Training)
        if network is None or steps is None:
            return None
        works = training(self.experiment, network, section, steps)
        return sum(self.machine.seconds(work, compute, processes=compute.processes) for work in works)

    def live_seconds(self, train: Planned, rows: float) -> float | None:
        """What an encoder beside the steps of a train step takes for so many rows."""
        compute = train.step.compute
        beside = compute.model_copy(update={"workers": compute.processes})
        encode = self.known[train.step.inputs["latents"]].planned
        return self.encoder_seconds(encode, beside, rows * live_positions(self.experiment))

    def sample(self, planned: Planned, section: Sample) -> _Cost:
        network, pairs = self.network(), self.experiment.data.train.pairs
        count = self.known[planned.step.inputs["tokens"]].rows if pairs else section.count
        if network is None or count is None:
            return _Cost()
        compute, texts = planned.step.compute, count * len(section.seeds)
        size = compute.batch or max(1, SAMPLED_POSITIONS[self.machine.uses_gpu(compute)] // self.length)
        work = sampling(self.experiment, network, section, texts, size)
        batches = len(section.seeds) * -(-count // size)  # each of them is one process's
        busy = max(1, min(compute.processes, batches))
        work = work._replace(calls=work.calls / busy)
        seconds = self.machine.seconds(work, compute, processes=busy)
        seconds += self.machine.seconds(following(self.experiment, network, section), compute)
        seconds += LAUNCHING / self.machine.pace if compute.several else 0.0
        tokens = texts * self.length
        return _Cost(texts, tokens, tokens * BYTES_PER_TOKEN, seconds)

    def evaluate(self, planned: Planned, section: Evaluate) -> _Cost:
        texts = self.known[planned.step.inputs["samples"]].rows
        if texts is None:
            return _Cost()
        tokens = texts * self.length
        if section.judge is None:
            return _Cost(texts, tokens, texts * 400, 0.0)
        size = self.known[planned.step.inputs["judge"]].bytes
        if size is None:
            return _Cost(texts, tokens, texts * 400)
        read = texts * min(self.length, section.judge.window)
        work = Work(2 * size / 4 * read, 768, section.judge.precision, narrow=40)
        loading = size / 4 / LOADED / self.machine.pace
        return _Cost(texts, tokens, texts * 400, loading + self.machine.seconds(work, planned.step.compute))

    def width(self) -> int | None:
        """d of the encoder."""
        return width_of(self.experiment, self.found("fetch-encoder"))

    def network(self) -> AnyConfig | None:
        """What is or would be trained."""
        vocabulary = vocabulary_of(self.experiment, self.found("tokenize"))
        return network_of(self.experiment, self.width(), vocabulary)

    def found(self, step: str) -> Artifact | None:
        return self.known[step].found if step in self.known else None


def _whole(number: float | None) -> int | None:
    return None if number is None else int(number)
