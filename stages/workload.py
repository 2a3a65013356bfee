"""What stages compute, from settings alone: the network, its encoder and how many operations they come to.

An encoder that is here is counted by its ``config.json``; of one that is not, only its size is known. Light: no torch.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, cast, get_args

from elf.stages.config import Encode, Experiment, Pretrain, Sample
from elf.stages.machine import Work
from elf.stages.model.config import Method, ModelConfig, SamplerConfig
from elf.stages.model.flops import (
    distill_parts,
    forward_flops,
    muon_flops,
    sample_flops,
    step_parts,
    token_sample_flops,
    token_step_parts,
)
from elf.stages.model.token_config import TokenConfig, TokenMethod, TokenSamplerConfig
from elf.stages.sample_settings import steps_read
from elf.stages.shapes import model_config, objective_config, token_config
from elf.stages.train_settings import DistillRound, Training

USEFUL = 0.3
"""Share of a pretrained model's weights that work on each token: not its embedding table, not a decoder."""
NETWORK_NARROW, ENCODER_NARROW = 80, 40
"""Widths at which norms, rotations and the like take as long as the products (``Work.narrow``), as measured on one
core at hidden 64 and 192, and at 384 and 512 of encoders."""
STEP_CALLS, FORWARD_CALLS = 2700, 250
"""Tensor operations of a training step and of one forward pass, for each block of the network and once besides."""
PRETRAIN_CALLS = 1500
TRAINED_IN = {"float32": "float32", "bf16": "bfloat16"}
"""What a machine's speeds call the precision of a training run."""


AnyConfig: TypeAlias = ModelConfig | TokenConfig


def network_of(experiment: Experiment, width: int | None, vocabulary: int) -> AnyConfig | None:
    """The network that would be trained; None where that takes the encoder's ``width``."""
    length, method = experiment.tokenize.length, experiment.train.method
    if method != "flow":
        return token_config(experiment.train.model, method, vocabulary=vocabulary, length=length)
    if width is None:
        return None
    table = experiment.train.embeddings is not None
    return model_config(
        experiment.train.model, width=width, vocabulary=vocabulary, length=length, table=table
    )


def row_parts(experiment: Experiment, network: AnyConfig) -> tuple[float, float]:
    """Operations of a row of a training step: of what runs in the run's precision, and of what stays in float32."""
    length = experiment.tokenize.length
    if isinstance(network, TokenConfig):
        return token_step_parts(network, length)
    return step_parts(network, objective_config(experiment.train.objective), length)


def training(experiment: Experiment, network: AnyConfig, section: Training, steps: int) -> tuple[Work, ...]:
    """All steps of training or of a round of distillation, optimiser and held-out measurements included."""
    objective, length = objective_config(experiment.train.objective), experiment.tokenize.length
    calls, measured = STEP_CALLS, 1 / 3  # without a backward pass a step is a third of itself
    if isinstance(section, DistillRound) and isinstance(network, ModelConfig):
        trunk, heads = distill_parts(network, objective, length, teacher_steps=section.span_steps)
        calls += (section.span_steps + 1) * FORWARD_CALLS
        measured = 1.0  # most of it is the teacher's
    else:
        trunk, heads = row_parts(experiment, network)
    rows: float = steps * section.batch
    if section.heldout is not None:  # with two sets of weights
        rows += (steps // section.heldout.every + 1) * 2 * section.heldout.rows * measured
    precision = TRAINED_IN[section.precision]
    calls = steps * calls * (network.depth + 1)
    optimiser = steps * muon_flops(network) if section.optim.name == "muon" else 0.0
    return (
        Work(rows * trunk, network.hidden, precision, calls, NETWORK_NARROW),
        Work(rows * heads, network.hidden, narrow=NETWORK_NARROW / 2),
        Work(optimiser, network.hidden, narrow=NETWORK_NARROW / 2),
    )


def sampling(experiment: Experiment, network: AnyConfig, section: Sample, texts: int, batch: int) -> Work:
    """``texts`` texts, ``batch`` of them at a time."""
    if isinstance(network, TokenConfig):
        return _token_sampling(experiment, network, section, texts, batch)
    assert section.method not in get_args(TokenMethod)
    objective, length = experiment.train.objective, experiment.tokenize.length
    sampler = SamplerConfig(
        method=cast("Method", section.method),
        steps=section.steps,
        gamma=section.gamma if section.method == "sde" else 0.0,
        guidance=section.guidance,
        input_guidance=section.input_guidance,
        self_condition=objective.self_condition > 0,
        self_condition_guidance=section.guidance,
    )
    flops = sample_flops(network, sampler, length, conditioned=experiment.data.train.pairs)
    calls = -(-texts // batch) * (section.steps + 1) * FORWARD_CALLS * (network.depth + 1)
    precision = TRAINED_IN[section.precision]
    return Work(texts * flops, network.hidden, precision, calls=calls, narrow=NETWORK_NARROW)


def _token_sampling(
    experiment: Experiment, network: TokenConfig, section: Sample, texts: int, batch: int
) -> Work:
    masked, length = section.method == "masked", experiment.tokenize.length
    sampler = TokenSamplerConfig(network.method, steps=section.steps if masked else None)
    given = (experiment.tokenize.max_source or 0) if experiment.data.train.pairs else 0
    flops = token_sample_flops(network, sampler, length, given=given)
    free = length - given
    asked = -(-texts // batch) * (min(section.steps, free) if masked else free)
    return Work(
        texts * flops,
        network.hidden,
        TRAINED_IN[section.precision],
        calls=asked * FORWARD_CALLS * (network.depth + 1),
        narrow=NETWORK_NARROW,
    )


def following(experiment: Experiment, network: AnyConfig, section: Sample) -> Work:
    """The texts whose trajectories are kept, sampled once more and decoded at every reading."""
    texts, readings = section.trajectories, len(steps_read(section.steps))
    if isinstance(network, TokenConfig):
        return sampling(experiment, network, section, 0, 1)
    again = sampling(experiment, network, section, texts, max(1, texts))
    self_condition = experiment.train.objective.self_condition > 0
    one = forward_flops(network, experiment.tokenize.length, self_condition=self_condition)
    decoded = texts * readings * (one.trunk + one.attention + one.decode_head)
    calls = readings * FORWARD_CALLS * (network.depth + 1) if texts else 0
    return again._replace(flops=again.flops + decoded, calls=again.calls + calls)


@dataclass(frozen=True, slots=True)
class EncoderShape:
    """The blocks of an encoder up to the layer that is read."""

    width: int
    inner: int
    """Width of all attention heads together."""
    feed: int
    """Width of the feed-forward part times its matrices."""
    layers: int

    def flops(self, length: int) -> float:
        """Of one position of a row of ``length``."""
        block = 2.0 * (4 * self.width * self.inner + self.width * self.feed) + 4.0 * length * self.inner
        return self.layers * block

    @property
    def weights(self) -> int:
        return self.layers * (4 * self.width * self.inner + self.width * self.feed)


def pretrained_shape(section: Pretrain) -> EncoderShape:
    """Of the encoder that ``pretrain`` makes."""
    inner = section.width // section.heads * section.heads
    return EncoderShape(section.width, inner, 2 * section.feed_forward, section.layers)


def read_shape(folder: Path, layer: int | None) -> EncoderShape | None:
    """Of a fetched encoder; None where its ``config.json`` is none that is known."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        shape = _t5(config) if "d_model" in config else _bert(config)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    layers = shape.layers if layer is None else min(layer, shape.layers)
    return EncoderShape(shape.width, shape.inner, shape.feed, layers)


def _t5(config: Mapping[str, Any]) -> EncoderShape:
    matrices = 3 if str(config.get("feed_forward_proj", "relu")).startswith("gated") else 2
    inner = int(config["d_kv"]) * int(config["num_heads"])
    return EncoderShape(
        int(config["d_model"]), inner, matrices * int(config["d_ff"]), int(config["num_layers"])
    )


def _bert(config: Mapping[str, Any]) -> EncoderShape:
    names = ("dim", "hidden_dim", "n_layers") if "dim" in config else _BERT_NAMES
    width, feed, layers = (int(config[name]) for name in names)
    return EncoderShape(width, width, 2 * feed, layers)


_BERT_NAMES = ("hidden_size", "intermediate_size", "num_hidden_layers")


def encoding(section: Encode, shape: EncoderShape | None, size: int | None, length: int) -> Work | None:
    """One position of a row of ``length``; by its shape, else by its bytes, else not known."""
    if shape is not None:
        return Work(shape.flops(length), shape.width, section.compute, narrow=ENCODER_NARROW)
    if size is None:
        return None
    width = section.expect_width or 512
    return Work(2.0 * USEFUL * size / 4, width, section.compute, narrow=ENCODER_NARROW)


def encoded_positions(experiment: Experiment) -> tuple[int, int]:
    """Of a row at most: states stored; positions that the encoder is given."""
    length, source = experiment.tokenize.length, experiment.tokenize.max_source
    if not experiment.data.train.pairs or source is None:
        return length, length
    stored = {"condition": source, "target_given_condition": length - source, "target": length - source}
    given = {"condition": source, "target_given_condition": length, "target": length}
    views = experiment.encode.views or tuple(stored)
    return sum(stored.get(view, 0) for view in views), sum(given.get(view, 0) for view in views)


def live_positions(experiment: Experiment) -> float:
    """Positions that an encoder beside a training step is given for a row, on average over dropped conditions."""
    length, source = experiment.tokenize.length, experiment.tokenize.max_source
    if not experiment.data.train.pairs or source is None:
        return length
    kept = 1 - experiment.train.objective.condition_dropout
    return length + kept * source
