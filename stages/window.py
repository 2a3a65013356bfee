"""How a window of states encoded ahead of training is cut into blocks of steps. Light: no torch."""

from dataclasses import dataclass

from elf.pipeline.errors import Misconfigured
from elf.pipeline.wording import bytes_text

BLOCKS = 8
ROW_EXTRA, BLOCK_EXTRA = 24, 8192
"""Bytes of a row's index entry and checksum; of a block's descriptions."""


@dataclass(frozen=True, slots=True)
class Window:
    """``steps`` of a block, and how many ``blocks`` lie on the disk at a time."""

    steps: int
    blocks: int


def least_window(batch: int, row_bytes: int) -> int:
    """Bytes that two steps of so many rows take, one a block: one is read while the other is written."""
    return 2 * (batch * (row_bytes + ROW_EXTRA) + BLOCK_EXTRA)


def cut_window(allowed: int, *, batch: int, row_bytes: int) -> Window:
    """The window of one process, which may take ``allowed`` bytes and has steps of ``batch`` rows.

    Raises Misconfigured where not even two steps fit.
    """
    step = batch * (row_bytes + ROW_EXTRA)
    steps = max(1, (allowed // BLOCKS - BLOCK_EXTRA) // step)
    blocks = min(BLOCKS, allowed // (steps * step + BLOCK_EXTRA))
    if blocks < 2:
        raise Misconfigured(
            f"With compute.train.source: rolling, a process may take {bytes_text(allowed)} of disk, and two steps of "
            f"{batch} rows take {bytes_text(least_window(batch, row_bytes))}. Raise compute.train.window_bytes, free "
            "some disk, or set compute.train.source to live, which takes none."
        )
    return Window(steps, blocks)
