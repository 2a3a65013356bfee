"""A few texts sampled while a model is trained, always from the same noise, so that one can watch it learn.

They lie in ``aux/samples/step_<n>.jsonl`` and touch nothing that training makes: noise is a function of (seed, number),
weights are the averaged ones, rows of pairs are read once, before the first step.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from elf.cache.files import make_folder
from elf.pipeline.errors import Failed
from elf.pipeline.stage import StageContext
from elf.stages.compute import GlimpseSettings
from elf.stages.config import Sample
from elf.stages.latents import LatentRows
from elf.stages.model.network import Network
from elf.stages.model.speeding import uncompiled
from elf.stages.model.token_config import TokenSamplerConfig
from elf.stages.model.token_network import TokenNetwork
from elf.stages.sample import read_out
from elf.stages.sampling import Sampling, sampler_config
from elf.stages.texts import GLIMPSES, Text, write_texts
from elf.stages.token_models import TokenCard, TrainedTokens
from elf.stages.token_sampling import TokenSampling
from elf.stages.trained import Card, Trained
from elf.stages.training_state import TrainingState
from elf.stages.vocabulary import Vocabulary

TOLD, LETTERS = 2, 64
"""Texts that are said to who is watching, and how much of each: a line of a terminal."""


class Glimpses:
    """``settings.count`` texts of a run with ``seed``. Pairs are conditioned on the first rows of ``rows``, a
    validation split where there is one; other texts start from noise alone."""

    def __init__(
        self,
        settings: GlimpseSettings,
        context: StageContext,
        *,
        network: Network | TokenNetwork,
        card: Card | TokenCard,
        seed: int,
        rows: LatentRows,
        device: torch.device,
    ) -> None:
        self._every, self._context, self._seed = settings.every, context, seed
        self._rows = rows.tokens
        pairs = self._rows.vocabulary.max_source is not None
        self._places = range(min(settings.count, rows.rows) if pairs else settings.count)
        self._pairs = pairs
        model = _Model(network, card, self._rows.vocabulary, str(device))
        self._sample = model.sampled(settings.steps, seed, self._places, rows if pairs else None)
        self.read([np.array([], np.int64)] * len(self._places))  # a tokenizer that is not there is missed now

    def due(self, step: int) -> bool:
        """Whether to look after ``step`` steps."""
        return step % self._every == 0

    def take(self, state: TrainingState) -> tuple[Text, ...]:
        """Sample, write and tell; none where the weights give nothing that can be read, which stops no training."""
        network = state.network.eval()
        try:
            with state.ema.applied(network), uncompiled():
                ids = self._sample()
        except Failed as reason:
            self._context.progress.note(f"No samples after step {state.step}: {reason}")
            return ()
        finally:
            network.train()
        texts = self.read(ids)
        write_texts(make_folder(self._context.aux / GLIMPSES) / f"step_{state.step}.jsonl", texts)
        for text in texts[:TOLD]:
            self._context.progress.note(f"{state.step}: {shorten(text.text)}")
        return texts

    def read(self, ids: list[np.ndarray]) -> tuple[Text, ...]:
        """The texts of tokenizer ids, in order."""
        made = [(self._seed, place, row.tolist()) for place, row in zip(self._places, ids, strict=True)]
        return tuple(read_out(made, self._rows, pairs=self._pairs))


class _Model(NamedTuple):
    """What is trained, as it may be sampled on the way."""

    network: Network | TokenNetwork
    card: Card | TokenCard
    vocabulary: Vocabulary
    device: str

    def sampled(
        self, steps: int, seed: int, places: range, sources: LatentRows | None
    ) -> Callable[[], list[np.ndarray]]:
        """What samples these texts whenever it is called; the rows they are conditioned on are read now."""
        network, card, vocabulary, device = self
        if isinstance(card, TokenCard):
            assert isinstance(network, TokenNetwork)
            config = TokenSamplerConfig(card.method, steps=steps if card.method == "masked" else None)
            rows = None if sources is None else sources.tokens
            tokens = TokenSampling(TrainedTokens(network, card, ""), config, vocabulary, rows, device)
            return partial(tokens.ids, seed, places, tokens.condition(places))
        assert isinstance(network, Network)
        trained = Trained(network, card, digest="")
        setting = sampler_config(Sample(name="glimpses", method="ode", steps=steps), trained)
        flow = Sampling(trained, setting, vocabulary, sources, device)
        return partial(flow.ids, seed, places, flow.condition(places))


def shorten(text: str) -> str:
    """A text on one line of a terminal."""
    line = " ".join(text.split())
    return (line if len(line) <= LETTERS else f"{line[:LETTERS]}…") or "(empty)"
