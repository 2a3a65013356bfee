"""Rows of a split as training takes them: raw states and head ids, checked against each other before step 1.

x = (state − mean) / std is applied on reading, never stored. Text has one view, ``plain``. A pair has three:
``condition`` (states that see only the condition), ``target_given_condition`` and ``target`` (encoded without
seeing the condition); rows whose condition is dropped take their target from the last one. Here the states are those
of a store; ``elf.stages.live`` has them made by the encoder.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from elf.cache.layout import STORAGE, Array, RaggedLayout
from elf.cache.manifest import JSON
from elf.cache.rows import RaggedRows, Reader, Rows
from elf.cache.store import Artifact
from elf.pipeline.errors import Failed
from elf.pipeline.section import differences
from elf.stages.model.objective import Batch
from elf.stages.order import Integers
from elf.stages.rows import TokenRows
from elf.stages.states import PAIR_VIEWS, PLAIN, NoStates, States, StoredStates
from elf.stages.train_settings import Latents as LatentSettings

FARTHEST = 3.0
"""How far from 1 (by factor) the deviation of normalised latents may lie."""


@dataclass(frozen=True, slots=True)
class Scale:
    """x = (state − mean) / std."""

    mean: float
    std: float


@dataclass(frozen=True, slots=True, eq=False)
class RawBatch:
    """Rows as they are stored: ``states`` (B, L, d) in the stored dtype, in a buffer that is used again or on the
    device that made them; head ids (B, L) and lengths (B,) int64 on the CPU."""

    states_BLD: Tensor
    ids_BL: Tensor
    condition_length_B: Tensor
    length_B: Tensor

    def take(self, chosen: slice) -> "RawBatch":
        """Some of its rows, the same bytes."""
        return RawBatch(
            self.states_BLD[chosen],
            self.ids_BL[chosen],
            self.condition_length_B[chosen],
            self.length_B[chosen],
        )


class LatentRows:
    """The rows of one split, by any source; open it with ``open_latents``. ``encoder`` is what made the states, as the
    encode stage's facts name it."""

    def __init__(self, tokens: TokenRows, states: States, scale: Scale, encoder: JSON) -> None:
        self.tokens, self.states, self.scale, self.encoder = tokens, states, scale, encoder
        self.rows, self.length, self.width = states.shape
        self.dtype = states.dtype
        self.storage = STORAGE[states.dtype].dtype

    def through(self, states: States) -> "LatentRows":
        """The same rows, their states from elsewhere."""
        return LatentRows(self.tokens, states, self.scale, self.encoder)

    def make_buffer(self, batch: int, *, pinned: bool = False) -> Array:
        """Room for the states of ``batch`` rows; ``pinned``: where a GPU copies from while others compute."""
        shape = (batch, self.length, self.width)
        if not pinned:
            return np.empty(shape, self.storage)
        size = int(np.prod(shape)) * self.storage.itemsize
        return torch.empty(size, dtype=torch.uint8, pin_memory=True).numpy().view(self.storage).reshape(shape)

    def willneed(self, rows: Integers, dropped: Tensor) -> None:
        """These rows come soon; returns at once."""
        self.states.willneed(rows, dropped)

    def read(self, rows: Integers, dropped: Tensor, out: Array) -> RawBatch:
        """Rows, their states into ``out``; ``dropped`` (B,) bool says whose condition is dropped (and reads as zeros).

        Raises what the states' source raises.
        """
        conditions = self.tokens.condition_lengths(rows)
        return RawBatch(
            states_BLD=self.states.read(rows, dropped, out),
            ids_BL=torch.from_numpy(self.tokens.vocabulary.to_head(self.tokens.ids(rows))),
            condition_length_B=torch.from_numpy(conditions.astype(np.int64)),
            length_B=torch.from_numpy(self.tokens.lengths(rows).astype(np.int64)),
        )

    def normalise(self, raw: RawBatch, device: torch.device) -> Batch:
        """The batch the objective takes: float32 latents on the device, ids beside them, lengths on the CPU."""
        # Half-width numbers cross to a GPU as they are, and widen there.
        states_BLD = raw.states_BLD.to(device, non_blocking=True)
        x_BLD = states_BLD.to(dtype=torch.float32, copy=True)
        x_BLD.sub_(self.scale.mean).div_(self.scale.std)
        return Batch(x_BLD, raw.ids_BL.to(device), raw.condition_length_B, raw.length_B)


def open_latents(
    tokens: Artifact,
    latents: Artifact,
    settings: LatentSettings | Scale,
    *,
    drops: bool,
    reader: Reader = "map",
) -> LatentRows:
    """The rows of a split from a store; ``drops`` says that the ``target`` view will be needed.

    Raises Failed, naming both values, where tokens, latents and settings do not belong together.
    """
    encoded_from = latents.manifest.inputs.get("tokens")
    if encoded_from != tokens.manifest.fingerprint:
        _refuse("tokens' key", encoded_from, "the tokens given", tokens.manifest.fingerprint)
    rows = TokenRows.open(tokens.path)
    facts = latents.manifest.facts
    pairs = rows.vocabulary.max_source is not None
    views = _open_views(latents.path, pairs=pairs, drops=drops, reader=reader)
    for name, view in views.items():
        _check_view(name, view, facts, rows)
    _check_lengths(views, rows)
    scale = choose_scale(settings, *moments_in(facts))
    return LatentRows(rows, StoredStates(rows, views), scale, facts.get("encoder"))


def open_ids(tokens: Artifact) -> LatentRows:
    """The rows of a split without states: their latents have no width."""
    rows = TokenRows.open(tokens.path)
    return LatentRows(rows, NoStates(rows), Scale(0.0, 1.0), None)


def moments_in(facts: Mapping[str, Any]) -> tuple[float, float]:
    """Mean and deviation that a store's facts name."""
    return float(facts["mean"]), float(facts["std"])


def choose_scale(
    settings: LatentSettings | Scale, mean: float, std: float, *, whose: str = "the stored latents"
) -> Scale:
    """The scale asked for, of states with this mean and deviation. Raises Failed if those are far from it,
    and where the deviation is 0."""
    if isinstance(settings, Scale):
        return settings
    if not std:
        raise Failed(
            f"The std of {whose} is 0 (their mean is {mean:.4g}): the encoder gave the same state for every token, and "
            "there is nothing to learn or to divide by. Look at the encoder's weights, and encode again with another."
        )
    if settings.std == "measured":
        return Scale(mean, std)
    if not 1 / FARTHEST <= std / settings.std <= FARTHEST or abs(mean - settings.mean) > settings.std:
        raise Failed(
            f"train.latents normalises with mean {settings.mean:g} and std {settings.std:g}, but {whose} "
            f"have mean {mean:.4g} and std {std:.4g}, so x would be far from unit size. Set train.latents.std to "
            "a number near that, or to measured (it takes a store); or train on the latents this scale was meant for."
        )
    return Scale(settings.mean, settings.std)


def same_kind(train: LatentRows, heldout: LatentRows) -> None:
    """Refuse a held-out split of another encoder, shape, dtype or vocabulary than the training split."""
    ours, theirs = _kind(train), _kind(heldout)
    for what, wanted, have in differences(ours, theirs):
        _refuse(f"{what} (held-out split)", f"{have!s:.200}", "the training split", f"{wanted!s:.200}")


def _kind(rows: LatentRows) -> dict[str, JSON]:
    vocabulary = asdict(rows.tokens.vocabulary)
    return {
        "width": rows.width,
        "length": rows.length,
        "dtype": rows.dtype,
        "encoder": rows.encoder,
        "vocabulary": {name: list(v) if isinstance(v, tuple) else v for name, v in vocabulary.items()},
    }


def _open_views(path: Path, *, pairs: bool, drops: bool, reader: Reader) -> dict[str, Rows | RaggedRows]:
    needed = needed_views(pairs=pairs, drops=drops)
    reason = "pairs need it" if pairs else "rows of text need it"
    if pairs and drops:
        reason += ", as objective.condition_dropout is not 0"
    kind = RaggedRows if pairs else Rows
    return {name: kind.open(_view(path, name, reason), reader=reader) for name in needed}


def needed_views(*, pairs: bool, drops: bool) -> tuple[str, ...]:
    """The views that training takes its states from."""
    if not pairs:
        return (PLAIN,)
    return PAIR_VIEWS if drops else PAIR_VIEWS[:2]


def _view(path: Path, name: str, reason: str) -> Path:
    if not (path / name).is_dir():
        have = sorted(each.name for each in path.iterdir() if each.is_dir() and each.name != "aux")
        raise Failed(
            f"The latents in {path} have no view {name!r}, only {', '.join(have) or 'none'}; {reason}. Add it to "
            "encode.views."
        )
    return path / name


def _check_view(name: str, view: Rows | RaggedRows, facts: Mapping[str, Any], tokens: TokenRows) -> None:
    rows, length, width = view.shape
    for what, stored, wanted, of in (
        ("rows", rows, tokens.rows, "the tokens"),
        ("length", length, tokens.length, "the tokens"),
        ("rows", rows, facts["rows"], "their own manifest"),
        ("width", width, facts["width"], "their own manifest"),
        ("dtype", view.dtype, facts["dtype"], "their own manifest"),
    ):
        if stored != wanted:
            _refuse(f"{what} (view {name})", stored, of, wanted)


def _check_lengths(views: Mapping[str, Rows | RaggedRows], tokens: TokenRows) -> None:
    """Every row of a pair must have a state for each position: its condition's, and all after it in the targets."""
    conditions = tokens.condition_lengths(np.arange(tokens.rows))
    for name, view in views.items():
        if not isinstance(view, RaggedRows) or not isinstance(view.layout, RaggedLayout):
            continue
        wanted = conditions if name == "condition" else tokens.length - conditions
        if (wrong := np.flatnonzero(view.layout.lengths != wanted)).size:
            row = int(wrong[0])
            what = f"number of states in row {row} (view {name})"
            _refuse(what, int(view.layout.lengths[row]), "the tokens", int(wanted[row]))


def _refuse(what: str, stored: object, of: str, wanted: object) -> None:
    raise Failed(
        f"The stored latents do not fit {of}: their {what} is {stored}, that of {of} is {wanted}. Train on latents "
        "that were encoded from these tokens, by one encoder with one setting."
    )
