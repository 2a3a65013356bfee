"""A trained model and one way to sample it: from (seed, places) to latents, and from latents to token ids.

Shapes: B batch, L positions, D width, N positions of a text.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch
from torch import Tensor

from elf.cache.manifest import JSON
from elf.pipeline.errors import Failed, Misconfigured
from elf.stages.config import Sample
from elf.stages.fields import Precision
from elf.stages.latents import LatentRows
from elf.stages.model.config import SamplerConfig
from elf.stages.model.decoding import decode
from elf.stages.model.draws import SampleDraws, draw_samples
from elf.stages.model.sampler import Condition, Step, sample_latents
from elf.stages.trained import Trained
from elf.stages.vocabulary import Vocabulary, cut_at_end


@dataclass(frozen=True, slots=True, eq=False)
class Sampling:
    """A model, how it is sampled, and the sources it is conditioned on (None for text)."""

    trained: Trained
    config: SamplerConfig
    vocabulary: Vocabulary
    sources: LatentRows | None
    device: str
    precision: Precision = "float32"

    @torch.inference_mode()
    def ids(self, seed: int, places: Sequence[int], condition: Condition | None = None) -> list[np.ndarray]:
        """Tokenizer ids (up to the first end mark) of the texts `places` of a seed; for pairs these are rows, read
        where no `condition` was read before."""
        condition = self.condition(places) if condition is None else condition
        z_BLD = self.latents(seed, places, condition)
        return [cut_at_end(row, self.vocabulary.end_id) for row in self.read(z_BLD, condition)]

    def told(self) -> dict[str, JSON]:
        """The sampler's settings, as they are written beside its texts."""
        return asdict(self.config)

    def latents(
        self,
        seed: int,
        places: Sequence[int],
        condition: Condition | None,
        trace: Callable[[Step], None] | None = None,
    ) -> Tensor:
        """(B, L, D) latents at time 1, all of them finite."""
        draws = self.draws(seed, places)
        with self._computing():
            z_BLD = sample_latents(self.trained.network, draws, self.config, condition=condition, trace=trace)
        if not bool(torch.isfinite(z_BLD).all()):
            raise Failed(
                f"Sampling texts {places[0]} to {places[-1]} of seed {seed} gave numbers that are not finite; the "
                "weights are damaged or the setting explodes. Try a smaller guidance, or train again."
            )
        return z_BLD

    def draws(self, seed: int, places: Sequence[int]) -> SampleDraws:
        """The random numbers of these texts."""
        model = self.trained.model
        return draw_samples(
            seed, places, length=model.length, width=model.width, config=self.config, device=self.device
        )

    def window(self, condition: Condition | None) -> tuple[Tensor | None, int]:
        """Where each row's text begins (None: at 0) and how many positions it has."""
        length, longest = self.trained.model.length, self.vocabulary.max_source
        if condition is None or longest is None:
            return None, length
        return condition.length_B, length - longest

    def read(self, z_BLD: Tensor, condition: Condition | None) -> np.ndarray:
        """(B, N) tokenizer ids of all positions of a text, those behind its end mark too."""
        start_B, count = self.window(condition)
        with self._computing():
            head_BN = decode(self.trained.network, z_BLD, self.config, start_B=start_B, count=count)
        return self.vocabulary.to_tokenizer(self._known(head_BN.cpu().numpy()))

    def _computing(self) -> torch.autocast:
        """The setting's precision for the blocks of the network; its projections and heads stay float32."""
        half = self.precision == "bf16"
        return torch.autocast(torch.device(self.device).type, torch.bfloat16, enabled=half)

    def _known(self, head_BN: np.ndarray) -> np.ndarray:
        """Head entries beyond the tokenizer (imported heads are padded) read as the unknown token."""
        beyond, unknown = head_BN >= self.vocabulary.size, self.vocabulary.unknown_id
        if not beyond.any():
            return head_BN
        if unknown is None:
            raise Failed(
                f"The model gave id {int(head_BN[beyond][0])}, beyond the tokenizer's {self.vocabulary.size:,}, "
                "and that has no unknown token to stand for it. Take the tokenizer that the weights were trained with."
            )
        return np.where(beyond, unknown, head_BN)

    def condition(self, places: Sequence[int]) -> Condition | None:
        """What the texts of these rows are conditioned on; None for text."""
        if self.sources is None:
            return None
        kept = torch.zeros(len(places), dtype=torch.bool)
        raw = self.sources.read(np.array(places), kept, self.sources.make_buffer(len(places)))
        batch = self.sources.normalise(raw, torch.device(self.device))
        network = self.trained.network
        x_BLD = network.embed(batch.ids_BL) if network.config.table else batch.x_BLD
        return Condition(x_BLD, batch.condition_length_B.to(self.device))


def sampler_config(section: Sample, trained: Trained) -> SamplerConfig:
    """The sampler of a section for this model: its noise, times and self-conditioning are the objective's. Raises
    Misconfigured for a baseline's."""
    if section.method == "autoregressive" or section.method == "masked":
        raise Misconfigured(
            f"The sampling setting '{section.name}' has method {section.method}, and the model is a flow; set sample's "
            "method to ode or sde."
        )
    objective = trained.objective
    return SamplerConfig(
        method=section.method,
        steps=section.steps,
        grid=section.grid,
        guidance=section.guidance,
        gamma=section.gamma if section.method == "sde" else 0.0,
        input_guidance=section.input_guidance,
        sde_form=section.sde_form,
        time_mean=objective.time_mean,
        time_std=objective.time_std,
        noise_scale=objective.noise_scale,
        min_gap=objective.min_gap,
        self_condition=objective.self_condition > 0,
        self_condition_guidance=section.guidance,
    )
