"""What a step, or a held-out measurement, of a model of tokens came to: nats a token, exact or a bound.

The unit is the token: a counted position. ``perplexity`` is e to the power of the nats of held-out tokens; that of a
bound is a bound itself, and is called one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import exp
from typing import ClassVar, Literal

from elf.cache.manifest import JSON
from elf.stages.tally import BY_LEVEL, Tally, Unit

LARGEST = 700.0
"""Nats that a perplexity is told of at most; e to the power of more is no floating-point number."""
Nats = Literal["nll", "nll_bound"]
"""What lines of metrics call the loss: exact, or above the exact one."""


@dataclass(frozen=True, slots=True)
class ExactNats(Tally):
    """Of an autoregressive model."""

    name: ClassVar[Nats] = "nll"

    def means(self) -> dict[str, float]:
        """``loss``, under its own name too."""
        return {"loss": self.loss, self.name: self.loss}

    def besides(self) -> dict[str, float]:
        """The perplexity."""
        return {self.name.replace("nll", "perplexity"): exp(min(self.loss, LARGEST))}

    def sums(self) -> dict[str, JSON]:
        """None: there is no noise to tell them by."""
        return {}

    def counts(self, unit: Unit) -> dict[str, JSON]:
        """``positions``: the tokens."""
        return {unit: int(sum(self.decoded))}

    def counts_by_level(self, unit: Unit) -> dict[str, JSON]:
        """None, as of the sums."""
        return {}


@dataclass(frozen=True, slots=True)
class BoundNats(ExactNats):
    """Of a masked model; also by noise level, from 0, where all tokens are masked, to 1."""

    name: ClassVar[Nats] = "nll_bound"

    def sums(self) -> dict[str, JSON]:
        """Nats by noise level."""
        return {f"{self.name}_sum{BY_LEVEL}": list(self.ce_sums)}

    def counts_by_level(self, unit: Unit) -> dict[str, JSON]:
        """Tokens by noise level."""
        return {f"{unit}{BY_LEVEL}": [int(each) for each in self.decoded]}


def nats_in(line: Mapping[str, object]) -> Nats | None:
    """What a line of metrics of a step calls its nats; None where it is of a flow."""
    return next((name for name in ("nll", "nll_bound") if name in line), None)
