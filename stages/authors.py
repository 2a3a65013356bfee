"""The file of the authors' PyTorch program: a `torch.save`d dict of weights under their names.

    {"params": {name: tensor}, "ema_params1": {name: tensor}, "step": n, optimiser state …}

Decode kernels lie there as (in, out). A pickle is a program, so it is read with `weights_only`: tensors and plain
containers, nothing else. Names may carry what DDP or torch.compile put in front.
"""

import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from elf.cache.files import temporary_beside, writing
from elf.pipeline.errors import Failed
from elf.stages.mistaken import mistaken
from elf.stages.model.naming import from_authors, to_authors

RAW, EMA, STEP = "params", "ema_params1", "step"
SUFFIXES = (".pt", ".pth", ".bin", ".ckpt")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""Of weights: what float32 holds without loss."""


@dataclass(frozen=True, slots=True, eq=False)
class Foreign:
    """What such a file holds, still under its own names; `left_out` are its other keys (optimiser state …)."""

    raw: Mapping[str, Tensor]
    ema: Mapping[str, Tensor]
    step: int
    left_out: tuple[str, ...]


def find_file(folder: Path) -> Path:
    """The one checkpoint file in a fetched folder. Raises Failed for none or several."""
    found = sorted(path for path in folder.rglob("*") if path.suffix in SUFFIXES)
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or "none"
        raise Failed(
            f"One checkpoint file ({', '.join(SUFFIXES)}) is wanted and {folder} holds: {names}. Name the file itself: "
            "path:FILE, or hub:REPO@COMMIT#FILE."
        )
    return found[0]


def read_file(path: Path) -> Foreign:
    """Read a checkpoint without running anything in it. Raises Failed naming what is missing or damaged."""
    plain = _load(path)
    if not isinstance(plain, Mapping):
        raise Failed(f"{path} holds a {type(plain).__name__}; it must be a dict with '{RAW}' and '{EMA}'.")
    for key in (RAW, EMA):
        part = plain.get(key)
        if not isinstance(part, Mapping) or not all(
            isinstance(name, str) and isinstance(value, Tensor) for name, value in part.items()
        ):
            raise Failed(
                f"{path} has no '{key}' that maps names to tensors; it holds "
                f"{', '.join(map(repr, plain)) or 'nothing'}. Take an ELF checkpoint of the "
                "authors' program: it has both the weights and their average."
            )
    step = plain.get(STEP, 0)
    if isinstance(step, Tensor) and step.dim() == 0 and not step.is_floating_point():
        step = int(step)
    if type(step) is not int or step < 0:
        raise Failed(f"{path} has {step!r:.60} as '{STEP}'; it must be the number of steps, 0 or more.")
    return Foreign(
        raw=plain[RAW],
        ema=plain[EMA],
        step=step,
        left_out=tuple(sorted(str(key) for key in plain if key not in (RAW, EMA, STEP))),
    )


def _load(path: Path) -> Any:
    """What was given to torch.save; it writes checksums, but torch.load reads past them."""
    if fault := mistaken(path):
        raise Failed(f"{path} is no checkpoint: {fault}.")
    try:
        broken = zipfile.ZipFile(path).testzip() if zipfile.is_zipfile(path) else None
        if broken is None:
            return torch.load(path, map_location="cpu", weights_only=True, mmap=False)
    except Exception as error:  # damaged bytes make the unpickler raise anything: KeyError, AssertionError, …
        wanted = re.search(r"GLOBAL (\S+)", str(error))  # torch's own words advise to run it
        reason = (
            f"it asks for {wanted[1]}" if wanted else str(error).split("\n", 1)[0] or type(error).__name__
        )
        raise Failed(
            f"{path} is no checkpoint that can be read safely ({reason}). It must be a torch.save of tensors in plain "
            "dicts; a file that needs code of its own to load is refused."
        ) from error
    raise Failed(f"{path} is damaged: its part {broken} has other bytes than were written. Fetch it again.")


def translate(tensors: Mapping[str, Tensor], path: Path) -> dict[str, Tensor]:
    """Their weights under our names. Raises Failed for a name that no ELF has, and for what is no plain number."""
    try:
        ours = from_authors(tensors)
    except (ValueError, RuntimeError) as error:  # RuntimeError: a sparse kernel cannot be turned
        raise Failed(
            f"{path} holds weights of another program: {error}. Take an ELF checkpoint of the authors' program."
        ) from error
    for name, tensor in ours.items():
        if tensor.dtype not in DTYPES or tensor.layout != torch.strided or tensor.is_meta:
            kinds = ", ".join(str(kind).removeprefix("torch.") for kind in DTYPES)
            raise Failed(
                f"{path} holds {name} as {tensor.dtype} ({tensor.layout}, on {tensor.device}); weights must be "
                f"dense tensors of {kinds}."
            )
    return {name: tensor.contiguous() for name, tensor in ours.items()}


def write_file(path: Path, raw: Mapping[str, Tensor], ema: Mapping[str, Tensor], step: int) -> None:
    """Write our weights as their program does. Raises Failed for a network it does not know (adaLN …)."""
    try:
        parts = {RAW: to_authors(raw), EMA: to_authors(ema)}
    except ValueError as error:
        raise Failed(
            f"{path} was not written, for the weights have no form in the authors' program: {error}. Export a run "
            "whose train.model.conditioning is prefix."
        ) from error
    temporary = temporary_beside(path)
    try:
        with writing(path):
            with temporary.open("wb") as stream:
                torch.save({**parts, STEP: step}, stream)
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
