"""What a model of tokens and its sampler are, as plain numbers: the baselines beside the flow. No torch.

A model of tokens has no latents: it takes token ids in and gives probabilities of ids out.
"""

from dataclasses import dataclass
from typing import Literal

from elf.stages.model.config import Blocks, require, require_one_of, require_positive

TokenMethod = Literal["autoregressive", "masked"]


@dataclass(frozen=True, slots=True)
class TokenConfig(Blocks):
    """The network's shape: the blocks of a flow of the same `hidden`, `depth` and `heads`, between one table of
    tokens. `length` is the trained positions."""

    method: TokenMethod
    vocabulary: int
    length: int
    hidden: int
    depth: int
    heads: int
    dropout: float = 0.0

    def __post_init__(self) -> None:
        require_one_of("method", self.method, TokenMethod)
        for name in ("vocabulary", "length"):
            require_positive(name, getattr(self, name))
        self.require_blocks()

    @property
    def causal(self) -> bool:
        """Whether a position sees only those before it."""
        return self.method == "autoregressive"


@dataclass(frozen=True, slots=True)
class TokenSamplerConfig:
    """One way to choose tokens from their probabilities.

    `temperature` divides the logits, 0 takes the most probable token; `top_p` keeps the most probable tokens that
    together hold so much. `steps` is how many a masked model unmasks all positions in; an autoregressive one takes
    as many as there are tokens, and has none here.
    """

    method: TokenMethod
    temperature: float = 1.0
    top_p: float = 1.0
    steps: int | None = None

    def __post_init__(self) -> None:
        require_one_of("method", self.method, TokenMethod)
        require(self.temperature >= 0.0, f"temperature is {self.temperature}; it must be 0 or more")
        require(0.0 < self.top_p <= 1.0, f"top_p is {self.top_p}; it must be above 0 and at most 1")
        if self.method == "masked":
            require(
                self.steps is not None and self.steps >= 1,
                f"steps is {self.steps}; a sampler needs at least 1 step",
            )
        else:
            require(
                self.steps is None,
                f"steps is {self.steps} with method {self.method!r}, which takes as many as there are tokens; leave "
                "steps out",
            )
