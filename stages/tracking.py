"""A run's figures sent to TensorBoard or W&B too, through accelerate's trackers, by the process that writes.

TensorBoard's files lie in ``aux/tensorboard``, W&B's in ``aux/wandb``. A run that goes on is in the same log and tells
no step twice: TensorBoard forgets what comes after the checkpoint; W&B keeps it, as the steps come out the same, and is
told only what it does not have. Light: no torch here until one is opened.
"""

import secrets
import sys
from collections.abc import Iterable, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, Protocol, Self, TypeAlias

from elf.cache.files import write_atomic
from elf.cache.manifest import JSON
from elf.pipeline.errors import Failed, Misconfigured
from elf.pipeline.stage import StageContext
from elf.stages.pace import last_step
from elf.stages.tally import BY_LEVEL, means_of_nothing
from elf.stages.texts import Text

Kind: TypeAlias = Literal["none", "tensorboard", "wandb"]
PROJECT = "elf"
RUN_ID = "wandb-run"
"""File in ``aux`` that holds the id by which W&B knows the run."""


class _Accelerates(Protocol):
    """What of accelerate's trackers is used."""

    def start(self) -> None: ...

    def log(self, values: dict[str, Any], step: int | None = None) -> None: ...

    def store_init_configuration(self, values: dict[str, Any]) -> None: ...

    def finish(self) -> None: ...


def refuse_missing(kind: Kind) -> None:
    """Raises Misconfigured, with its cure, where the tracker's package is not installed."""
    if kind != "none" and find_spec(kind) is None:
        raise Misconfigured(
            f"compute.train.tracker is {kind}, but the package {kind} is not installed here. Install it, "
            f"`{sys.executable} -m pip install {kind}`, or set compute.train.tracker to none."
        )


class Tracker:
    """Tells a tracker, or nobody. Use it in a ``with``."""

    def __init__(
        self, tracker: _Accelerates | None = None, *, after: int = -1, linked: Path | None = None
    ) -> None:
        """``after``: the last step it was told of before; ``linked``: a folder that it leaves links in."""
        self._tracker, self._after, self._linked = tracker, after, linked

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._tracker is not None:
            self._tracker.finish()
        if self._linked is not None:  # an artifact holds plain files only
            for path in self._linked.rglob("*"):
                if path.is_symlink():
                    path.unlink()

    def log(self, step: int, line: Mapping[str, JSON]) -> None:
        """A line of metrics: its numbers under its own names, held-out ones under ``heldout/…``. The loss of a branch
        without rows is left out."""
        untold = {"step", *means_of_nothing(line)}
        figures = {
            _place(name): value
            for name, value in line.items()
            if name not in untold and not name.endswith(BY_LEVEL) and isinstance(value, int | float)
        }
        self._tell(step, figures)

    def texts(self, step: int, texts: Iterable[Text]) -> None:
        """Samples, each under its number."""
        self._tell(step, {f"samples/{text.id}": text.text for text in texts})

    def _tell(self, step: int, values: dict[str, Any]) -> None:
        if self._tracker is not None and values and step > self._after:
            self._tracker.log(values, step=step)


def open_tracker(kind: Kind, context: StageContext, *, step: int, settings: dict[str, Any]) -> Tracker:
    """The tracker of a run that begins, or goes on, after ``step`` steps. Raises Failed where it cannot begin."""
    refuse_missing(kind)
    if kind == "tensorboard":
        return _tensorboard(context, step)
    if kind == "wandb":
        return _wandb(context, settings)
    return Tracker()


def _tensorboard(context: StageContext, step: int) -> Tracker:
    from accelerate.tracking import TensorBoardTracker

    tracker = TensorBoardTracker("tensorboard", context.aux, purge_step=step + 1 if step else 0)
    tracker.start()
    context.progress.note(f"Watch it: tensorboard --logdir {context.aux / 'tensorboard'}")
    return Tracker(tracker)


def _wandb(context: StageContext, settings: dict[str, Any]) -> Tracker:
    from accelerate.tracking import WandBTracker

    wandb = import_module("wandb")
    run = _run_id(context.aux / RUN_ID)
    tracker = WandBTracker(PROJECT, dir=str(context.aux), id=run, resume="allow")
    try:
        tracker.start()
    except wandb.Error as error:
        raise Failed(
            f"W&B does not begin: {error}. Log in (`wandb login`, or WANDB_API_KEY), or set WANDB_MODE=offline and "
            "send the run later with `wandb sync`."
        ) from error
    tracker.store_init_configuration(settings)
    return Tracker(tracker, after=last_step(context.aux), linked=context.aux / "wandb")


def _run_id(path: Path) -> str:
    if not path.exists():
        write_atomic(path, secrets.token_hex(4))
    return path.read_text(encoding="utf-8")


def _place(name: str) -> str:
    for held in ("heldout_raw", "heldout"):
        if name.startswith(f"{held}_"):
            return f"{held}/{name.removeprefix(f'{held}_')}"
    return name
