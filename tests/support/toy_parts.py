"""Work that Dask workers are given in tests: (folder, part, advance)."""

import os
import time
from collections.abc import Callable
from pathlib import Path

from distributed import get_worker

from elf.pipeline.errors import Failed

Advance = Callable[[int], None]


def write(folder: Path, part: str, advance: Advance) -> None:
    """Leave a file that says which process made it, in two steps."""
    for _ in range(2):
        advance(5)
    (folder / part).write_text(str(os.getpid()))


def name(folder: Path, part: str, advance: Advance) -> None:
    """Leave a file that says what the worker is called, having kept it busy for a moment."""
    time.sleep(0.1)
    called = get_worker().name
    (folder / part).write_text(f"{type(called).__name__} {called}")


def die_once(folder: Path, part: str, advance: Advance) -> None:
    """Take the process down half way, the first time."""
    advance(5)
    mark = folder / f"{part}.tried"
    if part == "fatal" and not mark.exists():
        mark.touch()
        os._exit(1)
    write(folder, part, lambda amount: None)
    advance(5)


def refuse(folder: Path, part: str, advance: Advance) -> None:
    """Refuse one part, having counted the attempts."""
    with (folder / f"{part}.attempts").open("a") as file:
        file.write("x")
    if part == "wrong":
        raise Failed("Row 3 cannot be stored.")
    time.sleep(0.1)


def break_down(folder: Path, part: str, advance: Advance) -> None:
    """Raise what nobody expected."""
    with (folder / f"{part}.attempts").open("a") as file:
        file.write("x")
    raise RuntimeError("unexpected")


def environment(folder: Path, part: str, advance: Advance) -> None:
    """Say how this process was set up."""
    import torch

    names = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "OMP_NUM_THREADS")
    (folder / part).write_text(
        " ".join([*(os.environ[name] for name in names), str(torch.get_num_threads())])
    )
