"""A trained model of tokens and one way to sample it: from (seed, places) to token ids.

The same door as ``elf.stages.sampling.Sampling`` has. Shapes: B batch, L positions, C positions of a condition.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from elf.cache.manifest import JSON
from elf.pipeline.errors import Failed, Misconfigured
from elf.stages.config import Sample
from elf.stages.fields import Precision
from elf.stages.model.autoregressive import write
from elf.stages.model.masked import unmask
from elf.stages.model.speeding import uncompiled
from elf.stages.model.token_config import TokenMethod, TokenSamplerConfig
from elf.stages.model.token_draws import draw_choices
from elf.stages.rows import TokenRows
from elf.stages.token_models import TrainedTokens, load_tokens
from elf.stages.vocabulary import Vocabulary, cut_at_end


@dataclass(frozen=True, slots=True, eq=False)
class TokenCondition:
    """Head ids whose first ``length_B`` are the condition; the rest is not looked at."""

    ids_BC: Tensor
    length_B: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class TokenSampling:
    """A model, how it is sampled, and the rows whose conditions it writes on from (None for text)."""

    trained: TrainedTokens
    config: TokenSamplerConfig
    vocabulary: Vocabulary
    sources: TokenRows | None
    device: str
    precision: Precision = "float32"

    @torch.inference_mode()
    def ids(
        self, seed: int, places: Sequence[int], condition: TokenCondition | None = None
    ) -> list[np.ndarray]:
        """Tokenizer ids (up to the first end mark) of the texts `places` of a seed; for pairs these are rows, read
        where no `condition` was read before."""
        condition = self.condition(places) if condition is None else condition
        sampled = self._written if self.config.method == "autoregressive" else self._unmasked
        half = self.precision == "bf16"
        try:
            with torch.autocast(torch.device(self.device).type, torch.bfloat16, enabled=half):
                head_BN = sampled(seed, places, condition)
        except ValueError as error:
            raise Failed(
                f"Sampling texts {places[0]} to {places[-1]} of seed {seed} failed: {error}. Take the rows and "
                "weights of one run; where the weights are damaged, train again."
            ) from error
        return [
            cut_at_end(row, self.vocabulary.end_id)
            for row in self.vocabulary.to_tokenizer(head_BN.cpu().numpy())
        ]

    def condition(self, places: Sequence[int]) -> TokenCondition | None:
        """What the texts of these rows are conditioned on; None for text."""
        if self.sources is None:
            return None
        rows = np.array(places)
        longest = self.vocabulary.max_source
        ids_BC = self.vocabulary.to_head(self.sources.ids(rows)[:, :longest])
        lengths = self.sources.condition_lengths(rows).astype(np.int64)
        return self.given(ids_BC, lengths)

    def given(self, head_ids_BC: np.ndarray, lengths: np.ndarray) -> TokenCondition:
        """A condition on the device."""
        return TokenCondition(
            torch.from_numpy(head_ids_BC).to(self.device), torch.from_numpy(lengths).to(self.device)
        )

    def read(self, ids: np.ndarray, count: int) -> TokenCondition:
        """The one source of tokenizer ids, for ``count`` texts."""
        head_BC = np.tile(self.vocabulary.to_head(ids), (count, 1))
        return self.given(head_BC, np.full(count, ids.size))

    def told(self) -> dict[str, JSON]:
        """The sampler's settings, as they are written beside its texts."""
        return {name: value for name, value in asdict(self.config).items() if value is not None}

    def _written(self, seed: int, places: Sequence[int], condition: TokenCondition | None) -> Tensor:
        """(B, N) head ids, one after another. Blocks run as they are: each token is a shape of its own."""
        count = self.trained.model.length
        if condition is not None:
            count -= self.vocabulary.max_source or 0
        choice_BN = draw_choices(seed, places, count, what="token", device=self.device)
        end_id = int(self.vocabulary.to_head(np.array([self.vocabulary.end_id]))[0])
        with uncompiled():
            return write(
                self.trained.network,
                choice_BN,
                self.config,
                end_id=end_id,
                condition_BC=None if condition is None else condition.ids_BC,
                condition_length_B=None if condition is None else condition.length_B,
            )

    def _unmasked(self, seed: int, places: Sequence[int], condition: TokenCondition | None) -> Tensor:
        """(B, N) head ids of a row's whole length, then those of the text."""
        length = self.trained.model.length
        when_BL, choice_BL = (
            draw_choices(seed, places, length, what=what, device=self.device) for what in ("mask", "token")
        )
        if condition is None:
            return unmask(self.trained.network, when_BL, choice_BL, self.config)
        ids_BL = unmask(
            self.trained.network,
            when_BL,
            choice_BL,
            self.config,
            condition_BC=condition.ids_BC,
            condition_length_B=condition.length_B,
        )
        count = length - (self.vocabulary.max_source or 0)
        place_BN = condition.length_B[:, None] + torch.arange(count, device=ids_BL.device)
        return ids_BL.gather(1, place_BN)


def token_sampler_config(section: Sample, method: TokenMethod) -> TokenSamplerConfig:
    """The sampler of a section for a model of this method. Raises Misconfigured for the sampler of another."""
    if section.method != method:
        raise Misconfigured(
            f"The sampling setting '{section.name}' has method {section.method}, and the model was trained with "
            f"train.method {method}; set sample's method to that."
        )
    return TokenSamplerConfig(
        method=method,
        temperature=section.temperature,
        top_p=section.top_p,
        steps=section.steps if method == "masked" else None,
    )


def open_token_sampling(section: Sample, model: Path, rows: TokenRows, device: str) -> TokenSampling:
    """A setting of the trained model in ``model``, for these rows. Raises Failed where they do not belong together."""
    trained = load_tokens(model, section.weights, device)
    trained.card.check_fits(rows.vocabulary)
    config = token_sampler_config(section, trained.card.method)
    sources = None if rows.vocabulary.max_source is None else rows
    return TokenSampling(trained, config, rows.vocabulary, sources, device, section.precision)
