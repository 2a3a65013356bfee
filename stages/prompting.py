"""A few texts of a trained model for a person: from noise alone, or of a source that somebody typed.

Text i of a seed starts from the noise that the sample stage gives it. A source is cut to the longest condition and
encoded as the sources of training were, but alone and without padding, which changes rounding only.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

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
from elf.stages.sample_settings import SampleMethod
from elf.stages.sampling import Sampling, sampler_config
from elf.stages.token_sampling import open_token_sampling
from elf.stages.trained import load_trained, method_of
from elf.stages.vocabulary import TextTokenizer, Vocabulary, decode_texts, load_tokenizer


@dataclass(frozen=True, slots=True)
class Reader:
    """What turns a source into the states that a flow is conditioned on."""

    sampling: Sampling
    encoder: Encoder
    dtype: torch.dtype
    """Of stored states."""

    def read(self, ids: np.ndarray, count: int) -> Condition:
        """The one source for ``count`` texts."""
        states_1LD = self.encoder.states(torch.from_numpy(ids.astype(np.int64))[None])
        scale, model = self.sampling.trained.card.scale, self.sampling.trained.model
        states_LD = (states_1LD[0].to(self.dtype).float() - scale.mean) / scale.std
        x_BLD = torch.zeros(count, model.length, model.width, device=self.sampling.device)
        x_BLD[:, : ids.size] = states_LD
        return Condition(x_BLD, torch.full((count,), ids.size, device=self.sampling.device))


@dataclass(frozen=True, slots=True)
class Prompter:
    """A trained model with its tokenizer. ``read`` makes of ids what a text is conditioned on, and ``sample`` texts;
    the former is None where the model was trained on plain text."""

    vocabulary: Vocabulary
    tokenizer: TextTokenizer
    sample: Callable[[int, Sequence[int], Any], list[np.ndarray]]
    read: Callable[[np.ndarray, int], Any] | None

    def texts(self, count: int, *, seed: int, prompt: str | None = None) -> list[str]:
        """``count`` texts, all of the one source where there is a ``prompt``.

        Raises Misconfigured for a model of pairs without a prompt, for one of plain text with one, and for a prompt
        without a token.
        """
        condition = self._condition(prompt, count)
        ids = self.sample(seed, range(count), condition)
        return decode_texts(self.tokenizer, ids, self.vocabulary.end_id)

    def _condition(self, prompt: str | None, count: int) -> Any:
        if (prompt is None) != (self.read is None):
            raise Misconfigured(
                "This model was trained on pairs: give it a source with --prompt."
                if prompt is None
                else "This model was trained on plain text and writes from noise alone; leave --prompt out."
            )
        if prompt is None or self.read is None:
            return None
        [ids] = self.tokenizer.encode([prompt])
        ids = ids[: self.vocabulary.max_source]
        if not ids.size:
            raise Misconfigured(
                f"The --prompt {prompt!r:.60} has no token that the tokenizer knows; give it some text."
            )
        return self.read(ids, count)


def open_prompter(
    model: Artifact, tokens: Artifact, section: Sample, encode: Encode, *, encoder: Artifact | None
) -> Prompter:
    """The model of a run under one of its settings; ``encoder`` is wanted for pairs only.

    Raises Failed where model, tokens and encoder do not belong together.
    """
    device = choose_device("auto")
    rows = TokenRows.open(tokens.path)
    tokenizer = load_tokenizer(rows.path / "tokenizer")
    if method_of(model.path) != "flow":
        written = open_token_sampling(section, model.path, rows, device)
        reads = written.read if written.sources is not None else None
        return Prompter(rows.vocabulary, tokenizer, written.ids, reads)
    trained = load_trained(model.path, section.weights, device)
    trained.card.check_fits(vocabulary=rows.vocabulary)
    config = sampler_config(section, trained)
    sampling = Sampling(trained, config, rows.vocabulary, None, device, section.precision)
    if rows.vocabulary.max_source is None:
        return Prompter(rows.vocabulary, tokenizer, sampling.ids, None)
    if trained.model.table:
        return Prompter(rows.vocabulary, tokenizer, sampling.ids, partial(_read_table, sampling))
    if encoder is None:
        raise Failed(
            "The encoder of this run is gone from the store; `elf run` with its configuration brings it back."
        )
    info = describe_encoder(encoder.path / "data", layer=encode.layer, compute=encode.compute)
    trained.card.check_fits(encoder=encoder_facts(info, check_tokens(rows, info)))
    reader = Reader(sampling, load_encoder(info, device), DTYPES[encode.dtype])
    return Prompter(rows.vocabulary, tokenizer, sampling.ids, reader.read)


def _read_table(sampling: Sampling, ids: np.ndarray, count: int) -> Condition:
    """The one source for ``count`` texts, by the model's own table."""
    model, device = sampling.trained.model, sampling.device
    head_L = torch.from_numpy(sampling.vocabulary.to_head(ids)).to(device)
    x_BLD = torch.zeros(count, model.length, model.width, device=device)
    x_BLD[:, : ids.size] = sampling.trained.network.embed(head_L)
    return Condition(x_BLD, torch.full((count,), ids.size, device=device))


def choose_setting(settings: Sequence[Sample], name: str | None, *, method: SampleMethod = "sde") -> Sample:
    """The setting of that name, else the first, else the defaults of a method. Raises Misconfigured for one that is
    not there."""
    if name is None:
        return settings[0] if settings else Sample(name="default", method=method)
    for setting in settings:
        if setting.name == name:
            return setting
    known = ", ".join(setting.name for setting in settings) or "none"
    raise Misconfigured(f"The run has no sampling setting '{name}'; it has: {known}.")
