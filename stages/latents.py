"""Rows of a split as training takes them: stored latents and head ids, checked against each other before step 1.

x = (state − mean) / std is applied on reading, never stored. Text has one view, ``plain``. A pair has three:
``condition`` (states that see only the condition), ``target_given_condition`` and ``target`` (encoded without
seeing the condition); rows whose condition is dropped take their target from the last one.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from elf.cache.layout import Array, RaggedLayout
from elf.cache.manifest import JSON
from elf.cache.rows import RaggedRows, Rows, RowSource
from elf.cache.store import Artifact
from elf.pipeline.errors import Failed
from elf.pipeline.section import differences
from elf.stages.config import Latents as LatentSettings
from elf.stages.model.objective import Batch
from elf.stages.order import Integers
from elf.stages.rows import TokenRows

PLAIN = "plain"
PAIR_VIEWS = ("condition", "target_given_condition", "target")
FARTHEST = 3.0
"""How far from 1 (by factor) the deviation of normalised latents may lie."""


@dataclass(frozen=True, slots=True)
class Scale:
    """x = (state − mean) / std."""

    mean: float
    std: float


@dataclass(frozen=True, slots=True, eq=False)
class RawBatch:
    """Rows as they were stored: ``states`` (B, L, d) in the stored dtype, a buffer that is used again; head ids
    (B, L) and lengths (B,) int64, all on the CPU."""

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


class View(RowSource, Protocol):
    """What is asked of a store of one view."""

    def proven(self, row: int) -> Array: ...


class LatentRows:
    """The rows of one split; open it with ``open_latents``."""

    def __init__(
        self, tokens: TokenRows, views: Mapping[str, View], scale: Scale, facts: Mapping[str, Any]
    ) -> None:
        self.tokens = tokens
        self.views = views
        self.scale = scale
        self.facts = facts
        first = next(iter(views.values()))
        self.rows, self.length, self.width = first.shape
        self.storage, self.dtype = first.storage, first.dtype

    def make_buffer(self, batch: int) -> Array:
        """Room for the states of ``batch`` rows."""
        return np.empty((batch, self.length, self.width), self.storage)

    def willneed(self, rows: Integers) -> None:
        """Have the kernel read the rows from the disk; returns at once."""
        for view in self.views.values():
            view.willneed(rows)

    def read(self, rows: Integers, dropped: Tensor, out: Array) -> RawBatch:
        """Rows into ``out``; ``dropped`` (B,) bool says whose condition is dropped (and read as zeros).

        Raises Damaged where a row's bytes are not those that were stored.
        """
        conditions = self.tokens.condition_lengths(rows)
        for place, (row, start) in enumerate(zip(map(int, rows), conditions.tolist(), strict=True)):
            self._fill(out[place], row, start, dropped=bool(dropped[place]))
        states = torch.from_numpy(out[: len(rows)])
        return RawBatch(
            states_BLD=states.view(torch.bfloat16) if self.dtype == "bfloat16" else states,
            ids_BL=torch.from_numpy(self.tokens.vocabulary.to_head(self.tokens.ids(rows))),
            condition_length_B=torch.from_numpy(conditions.astype(np.int64)),
            length_B=torch.from_numpy(self.tokens.lengths(rows).astype(np.int64)),
        )

    def _fill(self, out: Array, row: int, start: int, *, dropped: bool) -> None:
        if PLAIN in self.views:
            out[:] = self.views[PLAIN].proven(row)
            return
        target = self.views["target" if dropped else "target_given_condition"].proven(row)
        out[:start] = 0 if dropped else self.views["condition"].proven(row)
        out[start:] = target

    def normalise(self, raw: RawBatch, device: torch.device) -> Batch:
        """The batch the objective takes: float32 latents on the device, ids beside them, lengths on the CPU."""
        x_BLD = raw.states_BLD.to(device=device, dtype=torch.float32, copy=True)
        x_BLD.sub_(self.scale.mean).div_(self.scale.std)
        return Batch(x_BLD, raw.ids_BL.to(device), raw.condition_length_B, raw.length_B)


def open_latents(
    tokens: Artifact, latents: Artifact, settings: LatentSettings | Scale, *, drops: bool
) -> LatentRows:
    """The rows of a split; ``drops`` says that the ``target`` view will be needed.

    Raises Failed, naming both values, where tokens, latents and settings do not belong together.
    """
    encoded_from = latents.manifest.inputs.get("tokens")
    if encoded_from != tokens.manifest.fingerprint:
        _refuse("tokens' key", encoded_from, "the tokens given", tokens.manifest.fingerprint)
    rows = TokenRows.open(tokens.path)
    facts = latents.manifest.facts
    views = _open_views(latents.path, pairs=rows.vocabulary.max_source is not None, drops=drops)
    for name, view in views.items():
        _check_view(name, view, facts, rows)
    _check_lengths(views, rows)
    return LatentRows(rows, views, choose_scale(settings, facts), facts)


def choose_scale(settings: LatentSettings | Scale, facts: Mapping[str, Any]) -> Scale:
    """The scale asked for, ``measured`` from the store's facts. Raises Failed if the store's is far from it."""
    if isinstance(settings, Scale):
        return settings
    mean, std = float(facts["mean"]), float(facts["std"])
    if settings.std == "measured":
        return Scale(mean, std)
    if not 1 / FARTHEST <= std / settings.std <= FARTHEST or abs(mean - settings.mean) > settings.std:
        raise Failed(
            f"train.latents normalises with mean {settings.mean:g} and std {settings.std:g}, but the stored latents "
            f"have mean {mean:.4g} and std {std:.4g}, so x would be far from unit size. Set train.latents.std to "
            "measured, or to a number near the store's; or train on the latents this scale was meant for."
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
        "encoder": rows.facts.get("encoder"),
        "vocabulary": {name: list(v) if isinstance(v, tuple) else v for name, v in vocabulary.items()},
    }


def _open_views(path: Path, *, pairs: bool, drops: bool) -> dict[str, View]:
    if not pairs:
        return {PLAIN: Rows.open(_view(path, PLAIN, "rows of text need it"))}
    needed = PAIR_VIEWS if drops else PAIR_VIEWS[:2]
    reason = "pairs need it" + (", as objective.condition_dropout is not 0" if drops else "")
    return {name: RaggedRows.open(_view(path, name, reason)) for name in needed}


def _view(path: Path, name: str, reason: str) -> Path:
    if not (path / name).is_dir():
        have = sorted(each.name for each in path.iterdir() if each.is_dir() and each.name != "aux")
        raise Failed(
            f"The latents in {path} have no view {name!r}, only {', '.join(have) or 'none'}; {reason}. Add it to "
            "encode.views."
        )
    return path / name


def _check_view(name: str, view: View, facts: Mapping[str, Any], tokens: TokenRows) -> None:
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


def _check_lengths(views: Mapping[str, View], tokens: TokenRows) -> None:
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
