"""A few texts of a trained model for a person: from noise alone, or of a source that somebody typed.

Text i of a seed starts from the noise that the sample stage gives it. A source is cut to the longest condition and
encoded as the sources of training were, but alone and without padding, which changes rounding only.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from elf.cache.store import Artifact
from elf.pipeline.errors import Failed, Misconfigured
from elf.stages.config import Encode, Sample
from elf.stages.devices import choose_device
from elf.stages.encode import check_tokens, encoder_facts
from elf.stages.encoder import Encoder, describe_encoder, load_encoder
from elf.stages.encoding import DTYPES
from elf.stages.model.sampler import Condition
from elf.stages.rows import TokenRows
from elf.stages.sampling import Sampling, sampler_config
from elf.stages.trained import load_trained
from elf.stages.vocabulary import TextTokenizer, decode_texts, load_tokenizer


@dataclass(frozen=True, slots=True)
class Reader:
    """What turns a source into the states a model is conditioned on."""

    encoder: Encoder
    dtype: torch.dtype
    """Of stored states."""


@dataclass(frozen=True, slots=True)
class Prompter:
    """A trained model with its tokenizer; ``reader`` is None where it was trained on plain text."""

    sampling: Sampling
    tokenizer: TextTokenizer
    reader: Reader | None

    def texts(self, count: int, *, seed: int, prompt: str | None = None) -> list[str]:
        """``count`` texts, all of the one source where there is a ``prompt``.

        Raises Misconfigured for a model of pairs without a prompt, for one of plain text with one, and for a prompt
        without a token.
        """
        condition = self._condition(prompt, count)
        ids = self.sampling.ids(seed, range(count), condition)
        return decode_texts(self.tokenizer, ids, self.sampling.vocabulary.end_id)

    def _condition(self, prompt: str | None, count: int) -> Condition | None:
        if (prompt is None) != (self.reader is None):
            raise Misconfigured(
                "This model was trained on pairs: give it a source with --prompt."
                if prompt is None
                else "This model was trained on plain text and writes from noise alone; leave --prompt out."
            )
        if prompt is None or self.reader is None:
            return None
        [ids] = self.tokenizer.encode([prompt])
        ids = ids[: self.sampling.vocabulary.max_source]
        if not ids.size:
            raise Misconfigured(
                f"The --prompt {prompt!r:.60} has no token that the tokenizer knows; give it some text."
            )
        states_1LD = self.reader.encoder.states(torch.from_numpy(ids.astype(np.int64))[None])
        scale, model = self.sampling.trained.card.scale, self.sampling.trained.model
        states_LD = (states_1LD[0].to(self.reader.dtype).float() - scale.mean) / scale.std
        x_BLD = torch.zeros(count, model.length, model.width, device=self.sampling.device)
        x_BLD[:, : ids.size] = states_LD
        return Condition(x_BLD, torch.full((count,), ids.size, device=self.sampling.device))


def open_prompter(
    model: Artifact, tokens: Artifact, section: Sample, encode: Encode, *, encoder: Artifact | None
) -> Prompter:
    """The model of a run under one of its settings; ``encoder`` is wanted for pairs only.

    Raises Failed where model, tokens and encoder do not belong together.
    """
    device = choose_device("auto")
    rows = TokenRows.open(tokens.path)
    trained = load_trained(model.path, section.weights, device)
    trained.card.check_fits(vocabulary=rows.vocabulary)
    reader = None
    if rows.vocabulary.max_source is not None:
        if encoder is None:
            raise Failed(
                "The encoder of this run is gone from the store; `elf run` with its configuration brings it back."
            )
        info = describe_encoder(encoder.path / "data", layer=encode.layer, compute=encode.compute)
        trained.card.check_fits(encoder=encoder_facts(info, check_tokens(rows, info)))
        reader = Reader(load_encoder(info, device), DTYPES[encode.dtype])
    config = sampler_config(section, trained)
    sampling = Sampling(trained, config, rows.vocabulary, None, device, section.precision)
    return Prompter(sampling, load_tokenizer(rows.path / "tokenizer"), reader)


def choose_setting(settings: Sequence[Sample], name: str | None) -> Sample:
    """The setting of that name, else the first, else the defaults. Raises Misconfigured for one that is not there."""
    if name is None:
        return settings[0] if settings else Sample(name="default")
    for setting in settings:
        if setting.name == name:
            return setting
    known = ", ".join(setting.name for setting in settings) or "none"
    raise Misconfigured(f"The run has no sampling setting '{name}'; it has: {known}.")
