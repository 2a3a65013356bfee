"""How many floating-point operations a row costs: matrix products and attention, a multiply and an add as two.

Shapes: S = prefix + length positions. Norms, activations, rotary turns and the embedders of single numbers (one
per row, not per position) are left out: together they stay below a percent. Training has the optimiser's besides,
which counts for as much as the model where batches are small.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from elf.stages.model.config import (
    GRAM_RATIO,
    PANEL,
    PANELS,
    SPECTRAL_RATIO,
    ModelConfig,
    ObjectiveConfig,
    SamplerConfig,
)
from elf.stages.model.token_config import TokenConfig, TokenSamplerConfig

EMBEDDED = 256
"""Width of the sines that a single number (time, guidance) is embedded from."""


@dataclass(frozen=True, slots=True)
class Flops:
    """One row's forward pass, by part. `trunk` has the projections and the blocks' matrices, without attention's
    products of positions with positions."""

    trunk: float
    attention: float
    flow_head: float
    decode_head: float

    @property
    def forward(self) -> float:
        """Without the decode head, which few rows need."""
        return self.trunk + self.attention + self.flow_head


def forward_flops(config: ModelConfig, length: int, *, self_condition: bool = True) -> Flops:
    """Of one row of `length` positions."""
    width, hidden, inner = config.width, config.hidden, config.feed_width
    positions = config.prefix + length
    down = width * config.bottleneck if config.bottleneck else 0
    project = down + (config.bottleneck or width) * hidden + (2 * width * width if self_condition else 0)
    block = 4 * hidden * hidden + 3 * hidden * inner
    return Flops(
        trunk=2.0 * (length * project + positions * config.depth * block),
        attention=4.0 * config.depth * positions * positions * hidden,
        flow_head=2.0 * length * hidden * width,
        decode_head=2.0 * length * (hidden * width + width * config.vocabulary),
    )


def step_flops(config: ModelConfig, objective: ObjectiveConfig, length: int) -> float:
    """Of one row of a training step, on average over the draws, optimiser apart.

    Forward and backward (twice the forward) of the trunk on every row and of each head on its own rows; one more
    forward on the self-conditioned denoise rows, two more on every row with dropout.
    """
    return sum(step_parts(config, objective, length))


def distill_flops(
    config: ModelConfig, objective: ObjectiveConfig, length: int, *, teacher_steps: int
) -> float:
    """Of one row of a distillation step, on average over the draws, optimiser apart: the student forward and backward,
    each head on its own rows, and of the teacher one forward a sub-step, and one for each coin, on denoise rows."""
    return sum(distill_parts(config, objective, length, teacher_steps=teacher_steps))


def distill_parts(
    config: ModelConfig, objective: ObjectiveConfig, length: int, *, teacher_steps: int
) -> tuple[float, float]:
    """`distill_flops` of the trunk, and of the heads."""
    one, decode = forward_flops(config, length), objective.decode_share
    called = (1.0 - decode) * (teacher_steps + objective.self_condition)
    heads = 3.0 * ((1.0 - decode) * one.flow_head + decode * one.decode_head) + called * one.flow_head
    return (3.0 + called) * (one.trunk + one.attention), heads


def step_parts(config: ModelConfig, objective: ObjectiveConfig, length: int) -> tuple[float, float]:
    """`step_flops` of the trunk, and of the heads, which stay in float32 whatever the precision."""
    one = forward_flops(config, length, self_condition=objective.self_condition > 0.0)
    decode = objective.decode_share
    if objective.self_condition == 0.0:
        again = 0.0
    else:
        again = 2.0 if config.dropout > 0.0 else (1.0 - decode) * objective.self_condition
    heads = 3.0 * ((1.0 - decode) * one.flow_head + decode * one.decode_head) + again * one.flow_head
    return (3.0 + again) * (one.trunk + one.attention), heads


def sample_flops(config: ModelConfig, sampler: SamplerConfig, length: int, *, conditioned: bool) -> float:
    """Of one text: the network in every variant that guidance asks for at every step, then once to decode."""
    one = forward_flops(config, length, self_condition=sampler.self_condition)
    variants = 2 if conditioned and sampler.input_guidance != 1.0 else 1
    if sampler.self_condition and not config.guided and sampler.self_condition_guidance not in (0.0, 1.0):
        variants *= 2
    return sampler.steps * variants * one.forward + one.trunk + one.attention + one.decode_head


def token_flops(config: TokenConfig, length: int) -> Flops:
    """Of one row of `length` positions through a model of tokens, the head on all of them. The projection before the
    head sees every position and counts with the trunk. Causal attention compares half of the pairs."""
    hidden, seen = config.hidden, (length + 1) / 2 if config.causal else length
    block = 4 * hidden * hidden + 3 * hidden * config.feed_width
    return Flops(
        trunk=2.0 * length * (config.depth * block + hidden * hidden),
        attention=4.0 * config.depth * length * seen * hidden,
        flow_head=0.0,
        decode_head=2.0 * length * hidden * config.vocabulary,
    )


def token_step_parts(config: TokenConfig, length: int) -> tuple[float, float]:
    """Of one row of a training step, forward and backward: of the blocks, and of the head, which a masked model needs
    on the masked half."""
    one = token_flops(config, length)
    return 3.0 * (one.trunk + one.attention), (3.0 if config.causal else 1.5) * one.decode_head


def token_sample_flops(
    config: TokenConfig, sampler: TokenSamplerConfig, length: int, *, given: float = 0.0
) -> float:
    """Of one text, in a row of which `given` positions are its condition. Each token goes through an autoregressive
    model once; a masked one is asked in every step in which a token is unmasked: of few steps in all of them, of many
    about as often as there are tokens to unmask. Every time the whole row goes through, condition and all; logits are
    made once for each token."""
    one, calls, free = token_flops(config, length), 1.0, length - given
    if sampler.steps is not None:
        calls = sampler.steps * (1.0 - (1.0 - 1.0 / sampler.steps) ** free)
    return calls * (one.trunk + one.attention) + one.decode_head * free / length


def muon_flops(config: ModelConfig | TokenConfig) -> float:
    """Of one optimiser step's Newton–Schulz iterations (`elf.stages.model.orthogonal`) on a CPU, whatever the batch.

    A long matrix (M × N, N ≥ 1.5 M) takes 4 M²N and as much again in symmetric products, and 28 M³ in these; a very
    long one (N ≥ 4 M) half of the former and 2 M³, its eigenvalues apart; any other 10 M²N, as much again in symmetric
    ones, and 10 M³. A GPU computes symmetric products whole, and takes a very long one like a long one.
    """
    total = 0.0
    shapes = token_matrices(config) if isinstance(config, TokenConfig) else matrices(config)
    for short, long in map(sorted, shapes):
        panels = max(1, min(PANELS, short // PANEL))
        symmetric = (panels + 1) / (2 * panels)
        if long >= SPECTRAL_RATIO * short:
            total += 2.0 * (1.0 + symmetric) * short**2 * long + 2.0 * symmetric * short**3
        elif long >= GRAM_RATIO * short:
            total += 4.0 * (1.0 + symmetric) * short**2 * long + 28.0 * symmetric * short**3
        else:
            total += 10.0 * (1.0 + symmetric) * short**2 * long + 10.0 * symmetric * short**3
    return total


def matrices(config: ModelConfig) -> Iterator[tuple[int, int]]:
    """Shapes (out, in) of all weight matrices of a network."""
    width, hidden, inner = config.width, config.hidden, config.feed_width
    adaln = config.conditioning == "adaln"
    for _ in range(2 if config.decoder == "separate" else 1):
        yield width, 2 * width
        if config.bottleneck is not None:
            yield config.bottleneck, width
        yield hidden, config.bottleneck or width
        for _ in range(2 if config.guided else 1):
            yield hidden, EMBEDDED
            yield hidden, hidden
        for _ in range(config.depth):
            yield from ((3 * hidden, hidden), (hidden, hidden), (2 * inner, hidden), (hidden, inner))
            if adaln:
                yield 6 * hidden, hidden
    if adaln:
        yield 2 * hidden, hidden
    yield from ((width, hidden), (width, hidden), (config.vocabulary, width))


def token_matrices(config: TokenConfig) -> Iterator[tuple[int, int]]:
    """Shapes (out, in) of the weight matrices of a model of tokens, its table apart."""
    hidden, inner = config.hidden, config.feed_width
    for _ in range(config.depth):
        yield from ((3 * hidden, hidden), (hidden, hidden), (2 * inner, hidden), (hidden, inner))
    yield hidden, hidden


def count_weights(config: ModelConfig | TokenConfig) -> int:
    """Numbers in all weight matrices, tables included: within a percent of a network's parameters."""
    if isinstance(config, TokenConfig):
        table = config.vocabulary * config.hidden
        return table + sum(rows * columns for rows, columns in token_matrices(config))
    table = config.vocabulary * config.width if config.table else 0
    return table + sum(rows * columns for rows, columns in matrices(config))
