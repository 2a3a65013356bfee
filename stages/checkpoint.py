"""Checkpoints: ``checkpoints/step_<n>/{model,ema,optimizer}.safetensors, state.json, COMPLETE``, n steps done.

A checkpoint is built under a temporary name, every file brought to the disk, ``COMPLETE`` (size and digest of each
file) written last, and the folder renamed: what a kill leaves behind never has a finished name. Older ones are
deleted only after the new one has been read back and agrees with its ``COMPLETE``. A checkpoint is used only if
every file agrees, all names are there and every number is finite. Nothing in it depends on clocks or hosts.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from elf.cache.files import (
    digest_file,
    free_bytes,
    fsync_folder,
    fsync_tree,
    is_stray,
    make_folder,
    remove_tree,
    temporary_beside,
    writing,
)
from elf.cache.manifest import JSON
from elf.pipeline.errors import Failed

PARTS = ("model", "ema", "optimizer")
STATE = "state.json"
COMPLETE = "COMPLETE"
_FILES = (*(f"{part}.safetensors" for part in PARTS), STATE)
_NAME = re.compile(r"step_(0|[1-9][0-9]*)")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a run goes on from after ``step`` optimiser steps: tensors by name, and plain data."""

    step: int
    model: Mapping[str, Tensor]
    ema: Mapping[str, Tensor]
    optimizer: Mapping[str, Tensor]
    state: Mapping[str, JSON]


class Unusable(Exception):
    """Why a checkpoint cannot be used, as the end of a sentence that names it."""


def save(folder: Path, checkpoint: Checkpoint, *, keep: int) -> Path:
    """Write ``folder/step_<n>`` and then delete all but the newest ``keep``. Raises Failed where a number is not
    finite or the disk refuses; what was there before is then untouched."""
    for part in PARTS:
        if bad := first_not_finite(getattr(checkpoint, part)):
            raise Failed(
                f"The checkpoint after step {checkpoint.step} was not written: {part} tensor {bad} holds NaN or "
                "an infinity. The last checkpoint is untouched; lower the learning rate (optim.lr) or train in float32."
            )
    final = make_folder(folder) / f"step_{checkpoint.step}"
    temporary = temporary_beside(final)
    try:
        _write(temporary, checkpoint)
        with writing(final):
            if final.exists():  # a damaged one that resume has skipped, or the same step saved again
                final.rename(temporary_beside(final))
            temporary.rename(final)
            fsync_folder(folder)
    finally:
        remove_tree(temporary)
    try:
        prove(final)
    except Unusable as reason:
        raise Failed(
            f"{final} was written but {reason}: this disk does not keep what it is given. The older checkpoints "
            "are untouched; use another store, or run the same command again."
        ) from reason
    steps = sorted(saved_steps(folder))
    for old in steps[: max(steps.index(checkpoint.step) + 1 - keep, 0)]:
        _remove(folder / f"step_{old}")
    remove_half_saves(folder)
    return final


def _write(path: Path, checkpoint: Checkpoint) -> None:
    make_folder(path)
    for part in PARTS:
        file = path / f"{part}.safetensors"
        tensors: Mapping[str, Tensor] = getattr(checkpoint, part)
        try:
            save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, file)
        except (SafetensorError, OSError) as error:
            raise Failed(
                f"Cannot write {file}: {error} ({free_bytes(path):,} bytes free there). The last checkpoint is "
                "untouched; free some space and run the same command again."
            ) from error
    with writing(path):
        (path / STATE).write_text(_dump({**checkpoint.state, "step": checkpoint.step}), encoding="utf-8")
        record = {
            name: {"bytes": (path / name).stat().st_size, "digest": digest_file(path / name)}
            for name in _FILES
        }
        fsync_tree(path)
        (path / COMPLETE).write_text(_dump(record), encoding="utf-8")
    fsync_tree(path)


def newest(
    folder: Path, note: Callable[[str], None], fault_beside: Callable[[Mapping[str, JSON]], str | None]
) -> Checkpoint | None:
    """The usable checkpoint of the most steps; None where none was ever finished. ``fault_beside`` is given its state,
    and says why what lies beside does not go with it, if so. Says by ``note`` which it skipped and why, and then
    removes unfinished ones. Raises Failed if there are checkpoints and none is usable: a run with a past never begins
    again unasked."""
    skipped: list[str] = []
    for step in sorted(saved_steps(folder), reverse=True):
        path = folder / f"step_{step}"
        try:
            found = read(path)
            if fault := fault_beside(found.state):
                raise Unusable(fault)
        except Unusable as reason:
            skipped.append(f"{path.name} {reason}")
            continue
        for line in skipped:
            note(f"Skipped checkpoint {line}.")
        remove_half_saves(folder)
        return found
    if skipped:
        raise Failed(
            f"No checkpoint in {folder} can be used: {'; '.join(skipped)}. Put an undamaged one back, or delete "
            "that folder to train from step 0."
        )
    remove_half_saves(folder)
    return None


def read(path: Path, parts: Iterable[str] = PARTS) -> Checkpoint:
    """The checkpoint in ``path`` on the CPU, with only the named tensor files. Raises Unusable saying what is
    wrong with it."""
    parts = tuple(parts)
    prove(path, (*(f"{part}.safetensors" for part in parts), STATE))
    state = json.loads((path / STATE).read_text(encoding="utf-8"))
    number = _NAME.fullmatch(path.name)
    if number is None or state.get("step") != int(number[1]):
        raise Unusable(f"says in {STATE} that it was written after step {state.get('step')}")
    tensors: dict[str, dict[str, Tensor]] = {part: {} for part in PARTS}
    for part in parts:
        try:
            tensors[part] = load_file(path / f"{part}.safetensors")
        except SafetensorError as error:
            raise Unusable(f"has a {part}.safetensors that cannot be read ({error})") from error
        if bad := first_not_finite(tensors[part]):
            raise Unusable(f"holds NaN or an infinity in {part} tensor {bad}")
    return Checkpoint(state["step"], tensors["model"], tensors["ema"], tensors["optimizer"], state)


def prove(path: Path, names: Iterable[str] = _FILES) -> Mapping[str, str]:
    """Check the files against ``COMPLETE`` and give their digests by name; raises Unusable."""
    if not (path / COMPLETE).is_file():
        raise Unusable(f"has no {COMPLETE}, so its writing was never finished")
    try:
        record = json.loads((path / COMPLETE).read_text(encoding="utf-8"))
        told = {name: (record[name]["bytes"], record[name]["digest"]) for name in _FILES}
    except (ValueError, KeyError, TypeError) as error:
        raise Unusable(f"has a {COMPLETE} that does not list its files ({error!r})") from error
    for name in names:
        size, digest = told[name]
        if not (path / name).is_file():
            raise Unusable(f"lacks {name}")
        if (have := (path / name).stat().st_size) != size:
            raise Unusable(f"has {have} bytes in {name} where {size} were written")
        if digest_file(path / name) != digest:
            raise Unusable(f"has other bytes in {name} than were written")
    return {name: digest for name, (_, digest) in told.items()}


def first_not_finite(tensors: Mapping[str, Tensor]) -> str | None:
    """Name of the first tensor with a NaN or an infinity."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            return name
    return None


def saved_steps(folder: Path) -> list[int]:
    """Step numbers of the folders with a finished name, in no order."""
    if not folder.is_dir():
        return []
    return [int(name[1]) for path in folder.iterdir() if (name := _NAME.fullmatch(path.name))]


def keep_only(folder: Path, step: int) -> None:
    """Delete everything in ``folder`` but ``step_<step>``, which must be whole."""
    prove(folder / f"step_{step}")
    for path in folder.iterdir():
        if path.name != f"step_{step}":
            _remove(path)


def remove_half_saves(folder: Path) -> None:
    """Delete what an interrupted save left: temporary folders, and finished names without ``COMPLETE``."""
    if not folder.is_dir():
        return
    for path in list(folder.iterdir()):
        if is_stray(path.name) or (_NAME.fullmatch(path.name) and not (path / COMPLETE).is_file()):
            _remove(path)


def _remove(path: Path) -> None:
    """Delete a folder so that a kill in between leaves no part of it under a finished name."""
    with writing(path):
        if not path.is_dir():
            path.unlink()
            return
        aside = temporary_beside(path)
        path.rename(aside)
    remove_tree(aside)


def _dump(payload: Mapping[str, object]) -> str:
    return json.dumps(payload, indent=1, sort_keys=True, allow_nan=False) + "\n"
