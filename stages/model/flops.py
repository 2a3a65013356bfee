"""How many floating-point operations a row costs: matrix products and attention, a multiply and an add as two.

Shapes: S = prefix + length positions. Norms, activations, rotary turns and the embedders of single numbers (one
per row, not per position) are left out: together they stay below a percent.
"""

from dataclasses import dataclass

from elf.stages.model.config import ModelConfig, ObjectiveConfig


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
    one = forward_flops(config, length, self_condition=objective.self_condition > 0.0)
    decode = objective.decode_share
    if objective.self_condition == 0.0:
        again = 0.0
    else:
        again = 2.0 if config.dropout > 0.0 else (1.0 - decode) * objective.self_condition
    trained = one.trunk + one.attention + (1.0 - decode) * one.flow_head + decode * one.decode_head
    return 3.0 * trained + again * one.forward
