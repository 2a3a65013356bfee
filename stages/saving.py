"""Checkpoints written while training goes on: a step copies its tensors, a thread brings the copy to the disk.

One copy at a time, in memory that is used again. What is on the disk at any moment is what ``stages.checkpoint``
promises; a kill loses the checkpoint that was being written and nothing older.
"""

import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

import torch
from torch import Tensor

from elf.stages import checkpoint as checkpoints
from elf.stages.checkpoint import PARTS, Checkpoint


class Saver:
    """Saves into ``folder`` and keeps the newest ``keep``; use it in a ``with``, which ends once all is written."""

    def __init__(self, folder: Path, *, keep: int, step: int = 0) -> None:
        """``step`` is that of the newest checkpoint in ``folder``, 0 where there is none."""
        self._folder, self._keep, self.step = folder, keep, step
        self._held: dict[str, Tensor] = {}
        self._thread: threading.Thread | None = None
        self._fault: Exception | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.wait()
        except Exception:
            if error is None:
                raise

    def save(self, checkpoint: Checkpoint) -> None:
        """Copy the checkpoint and have it written. Waits for the one before, and raises what went wrong with it."""
        self.wait()
        copied = {part: self._copy(part, getattr(checkpoint, part)) for part in PARTS}
        self._thread = threading.Thread(
            target=self._write, args=(replace(checkpoint, **copied),), name="save", daemon=True
        )
        self._thread.start()
        self.step = checkpoint.step

    def wait(self) -> None:
        """Return once everything handed over is on the disk. Raises Failed where it could not be written."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._fault is not None:
            fault, self._fault = self._fault, None
            raise fault

    @torch.no_grad()
    def _copy(self, part: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        copied: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            held = self._held.get(f"{part}/{name}")
            if held is None:
                held = self._held[f"{part}/{name}"] = torch.empty_like(tensor, device="cpu")
            copied[name] = held.copy_(tensor)
        return copied

    def _write(self, checkpoint: Checkpoint) -> None:
        try:
            checkpoints.save(self._folder, checkpoint, keep=self._keep)
        except Exception as error:  # carried over to the thread that trains
            self._fault = error
