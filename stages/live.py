"""States that the frozen encoder makes as they are wanted: the same rows, views, masks, lengths and cast as a store's.

What the encode stage would have stored, and its key names, is made here from the same inputs by the same functions;
where a batch begins and who shares it changes nothing, so the numbers are the store's up to rounding of the device.
What a store's manifest knows is found out anew: the encoder is described and checked as the encode stage does, and the
scale of the latents is compared with a few rows. ``train.latents.std: measured`` needs all rows, hence a store.
Shapes: B rows, L positions, D width.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import cast

import numpy as np
import torch
from torch import Tensor

from elf.cache.layout import STORAGE, Array, DType
from elf.cache.store import Artifact
from elf.pipeline.errors import Failed, Misconfigured
from elf.pipeline.stage import Unbuilt
from elf.stages.config import Encode
from elf.stages.encode import check_tokens, encoder_facts
from elf.stages.encoder import Encoder, EncoderInfo, describe_encoder
from elf.stages.encoding import DTYPES, as_stored, encoder_on, refusal
from elf.stages.latents import LatentRows, Scale, choose_scale, moments_in, needed_views
from elf.stages.moments import combine, counted, moments_of
from elf.stages.order import Integers
from elf.stages.rows import TokenRows
from elf.stages.sources import UNMEASURED
from elf.stages.states import Stopped, as_tensor
from elf.stages.train_settings import Latents as LatentSettings
from elf.stages.views import ViewName, ViewRows, choose_views

SAMPLE = 16
"""Rows whose moments stand for all where the scale is checked."""


@dataclass(frozen=True, slots=True)
class Making:
    """How states are made: ``device`` and ``batch_tokens`` (encoder positions in one call) change rounding at most."""

    info: EncoderInfo
    dtype: DType
    device: torch.device
    batch_tokens: int


class LiveStates:
    """States of the rows of ``tokens``; the encoder is loaded with the first."""

    def __init__(self, tokens: TokenRows, views: Sequence[ViewName], making: Making) -> None:
        self.tokens, self.making = tokens, making
        self.shape = (tokens.rows, tokens.length, making.info.width)
        self.dtype: DType = making.dtype
        self._views = {name: ViewRows(name, tokens) for name in views}
        self._stopped = threading.Event()

    @cached_property
    def encoder(self) -> Encoder:
        """The encoder in memory, one for all who use it in this process."""
        return encoder_on(self.making.info, str(self.making.device))

    def willneed(self, rows: Integers, drop_B: Tensor) -> None:
        pass

    def read(self, rows: Integers, drop_B: Tensor, out: Array) -> Tensor:
        """Raises Failed, naming row and layer, where a state is not finite or overflows the stored dtype."""
        if self.making.device.type == "cpu":
            states_BLD = as_tensor(out[: len(rows)], self.dtype)
        else:
            states_BLD = torch.empty(
                (len(rows), *self.shape[1:]), dtype=DTYPES[self.dtype], device=self.making.device
            )
        everything = np.arange(len(rows))
        kept, dropped = (np.flatnonzero(each) for each in (~drop_B.numpy(), drop_B.numpy()))
        places = {"plain": everything, "condition": kept, "target_given_condition": kept, "target": dropped}
        states_BLD[torch.from_numpy(dropped)] = 0
        for name, view in self._views.items():
            self._fill(states_BLD, view, rows, places[name])
        return states_BLD

    def stop(self) -> None:
        self._stopped.set()

    def _fill(self, states_BLD: Tensor, view: ViewRows, rows: Integers, places: Integers) -> None:
        """Put the view's states where they stand in their rows; ``places`` are those that take theirs from it."""
        size = max(1, self.making.batch_tokens // view.length)
        for start in range(0, len(places), size):
            if self._stopped.is_set():
                raise Stopped
            some = places[start : start + size]
            inputs = view.inputs(rows[some])
            made = as_stored(self.encoder, inputs, self.dtype)
            self._check(made, view, rows[some])
            chosen_B = torch.from_numpy(some).to(states_BLD.device)
            if inputs.kept_BL is None:
                states_BLD[chosen_B] = made
            else:
                block_BLD = states_BLD[chosen_B]
                block_BLD[:, : view.length][inputs.kept_BL.to(states_BLD.device)] = made
                states_BLD[chosen_B] = block_BLD

    def _check(self, made: Tensor, view: ViewRows, rows: Integers) -> None:
        if bool(torch.isfinite(made).all()):
            return
        for row in rows.tolist():  # which one it was is worth encoding them once more
            alone = as_stored(self.encoder, view.inputs(np.array([row])), self.dtype)
            if not bool(torch.isfinite(alone).all()):
                raise Failed(refusal(self.encoder, view, row, self.dtype))
        raise Failed(
            f"Rows {rows[0]} to {rows[-1]} (view {view.name}) hold a state that is not finite, but none of them alone "
            f"does: the encoder does not give one row one answer on {self.making.device}. Look at that device."
        )


def open_live(
    tokens: Artifact,
    unbuilt: Unbuilt,
    settings: LatentSettings | Scale,
    *,
    drops: bool,
    device: torch.device,
    stored: Artifact | None = None,
) -> LatentRows:
    """The rows of a split whose states ``unbuilt`` describes; ``stored`` is its artifact where that is there after all.

    Raises Failed where tokens, encoder and settings do not belong together, Misconfigured for what live states cannot
    do.
    """
    section = cast("Encode", unbuilt.section)
    encoded_from = unbuilt.inputs["tokens"].manifest.fingerprint
    if encoded_from != tokens.manifest.fingerprint:
        raise Failed(
            f"The latents are to be made from tokens {encoded_from}, but the tokens given are "
            f"{tokens.manifest.fingerprint}. Train on the tokens that the encoder is given."
        )
    info = describe_encoder(
        unbuilt.inputs["encoder"].path / "data", layer=section.layer, compute=section.compute
    )
    rows = TokenRows.open(tokens.path)
    probe = check_tokens(rows, info)
    making = Making(info, section.dtype, device, unbuilt.compute.batch_tokens)
    pairs = rows.vocabulary.max_source is not None
    states = LiveStates(rows, _views(section, pairs=pairs, drops=drops), making)
    return LatentRows(rows, states, _scale(settings, states, stored), encoder_facts(info, probe))


def _views(section: Encode, *, pairs: bool, drops: bool) -> tuple[ViewName, ...]:
    """Those that training needs; each must be one that the store of this key would have."""
    have = choose_views(section.views, pairs=pairs)
    for name in needed_views(pairs=pairs, drops=drops):
        if name not in have:
            reason = ", as objective.condition_dropout is not 0" if name == "target" else ""
            raise Misconfigured(
                f"encode.views is {list(have)}, and training needs {name!r}{reason}. Add it to encode.views."
            )
    return tuple(name for name in have if name in needed_views(pairs=pairs, drops=drops))


def _scale(settings: LatentSettings | Scale, states: LiveStates, stored: Artifact | None) -> Scale:
    if isinstance(settings, Scale):
        return settings
    if stored is not None:
        return choose_scale(settings, *moments_in(stored.manifest.facts))
    if settings.std == "measured":
        raise Misconfigured(UNMEASURED)
    return choose_scale(settings, *_sampled_moments(states), whose=f"{SAMPLE} rows of the latents")


def _sampled_moments(states: LiveStates) -> tuple[float, float]:
    """Mean and deviation of the states of tokens in a few rows, none dropped."""
    rows = np.unique(np.linspace(0, states.shape[0] - 1, SAMPLE).astype(np.int64))
    out = np.empty((1, *states.shape[1:]), STORAGE[states.dtype].dtype)
    lengths = states.tokens.lengths(rows).tolist()
    kept = torch.zeros(1, dtype=torch.bool)
    found = combine(
        moments_of(states.read(rows[place : place + 1], kept, out)[0, :length].double().cpu().numpy())
        for place, length in enumerate(lengths)
    )
    counted(found)
    return found.mean, found.std
