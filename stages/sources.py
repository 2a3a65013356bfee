"""Where training's latents come from: a store, a window that is encoded ahead, or the encoder beside each step.

The source is no part of any key: all give the same rows in the same order and the same numbers up to rounding, and a
run may go on with another. ``auto`` takes a store that is there, else builds one where it fits the disk, else encodes
a window ahead, else, where not even that fits, encodes beside each step. The choice is made before anything runs and
written into the plan: into train's settings and into how train is tied to its latents. Light: nothing here loads
torch.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal, TypeAlias

from elf.cache.errors import Damaged
from elf.cache.store import Artifact
from elf.pipeline.errors import Misconfigured
from elf.pipeline.plan import Plan, Planned, Step, Tie
from elf.pipeline.stage import Compute, StageContext
from elf.pipeline.wording import about, bytes_text
from elf.stages.compute import TrainCompute
from elf.stages.config import Experiment
from elf.stages.estimate import DTYPE_BYTES, estimate_plan
from elf.stages.hints import width_of
from elf.stages.machine import this_machine
from elf.stages.totals import Estimate, total_bytes
from elf.stages.train_settings import Train, Training
from elf.stages.window import cut_window, least_window

Source: TypeAlias = Literal["store", "rolling", "live"]
Find: TypeAlias = Callable[[Planned], Artifact | None]
"""Looks a step up in the store."""

MARGIN = 0.1
"""Share of the free disk that ``auto`` leaves free."""
LATENTS, HELDOUT = "latents", "heldout_latents"
UNMEASURED = (
    "train.latents.std is measured, which takes mean and deviation of all rows from a finished store, and the latents "
    "are not to be stored. Give train.latents.std a number (0.2 for t5-small; `elf show --json` has that of an earlier "
    "encode), or set compute.train.source to store."
)


@dataclass(frozen=True, slots=True)
class Choice:
    """A source, why it is taken, and the disk a window may take."""

    source: Source
    reason: str
    window_bytes: int

    def __str__(self) -> str:
        how = {
            "store": "from the store",
            "rolling": f"rolling, encoded ahead of training into a window of {bytes_text(self.window_bytes)}",
            "live": "live, encoded beside each training step",
        }
        return f"Latents: {how[self.source]}: {self.reason}."


def source_of(context: StageContext) -> Source:
    """The source of a training run as it begins; one that nobody chose before takes what it is given."""
    chosen = train_compute(context.compute).source
    if chosen != "auto":
        return chosen
    return "store" if LATENTS in context.inputs else "rolling"


def train_compute(compute: Compute) -> TrainCompute:
    """Train's runtime settings; its own stay at their defaults where only the common ones are given."""
    return compute if isinstance(compute, TrainCompute) else TrainCompute(**compute.model_dump())


def settle(
    plan: Plan, experiment: Experiment, find: Find, room: Callable[[Planned], int]
) -> tuple[Plan, Choice | None]:
    """The plan with the source of every training run chosen, and the choice of the first that is still to run;
    unchanged, and None, where nothing trains on latents.

    ``room``: bytes that are free for the latents of that step, what was begun of them included. Raises Misconfigured
    where a run is still to come and cannot with the source it asks for.
    """
    find = _forgiving(find)
    prices = cache(lambda: estimate_plan(plan, experiment, find, this_machine()))
    choices = {
        planned.step.name: _choose(plan, planned, experiment, find, room, prices)
        for planned in plan
        if isinstance(planned.step.section, Training) and LATENTS in planned.step.inputs
    }
    if not choices:
        return plan, None
    coming = [name for name in choices if find(plan[name]) is None]
    steps = (
        _tied(each.step, choices[each.step.name]) if each.step.name in choices else each.step for each in plan
    )
    return Plan(steps), choices[(coming or list(choices))[0]]


def _tied(step: Step, choice: Choice) -> Step:
    """A training step that takes its latents as chosen."""
    chosen = {"source": choice.source, "window_bytes": choice.window_bytes}
    ties = {} if choice.source == "store" else {LATENTS: Tie.INLINE, HELDOUT: Tie.INLINE}
    return replace(step, compute=train_compute(step.compute).model_copy(update=chosen), ties=ties)


def _choose(
    plan: Plan,
    train: Planned,
    experiment: Experiment,
    find: Find,
    room: Callable[[Planned], int],
    prices: Callable[[], tuple[Estimate, ...]],
) -> Choice:
    compute = train_compute(train.step.compute)
    latents = plan[train.step.inputs[LATENTS]]
    stored = find(latents)
    measured = _measures(train)
    if compute.source != "auto":
        pending = find(train) is None
        if measured and compute.source != "store" and stored is None and pending:
            raise Misconfigured(UNMEASURED)
        choice = Choice(compute.source, "as compute.train.source asks", compute.window_bytes)
        row_bytes = _row_bytes(plan, experiment, find)
        if choice.source == "rolling" and pending and row_bytes is not None:
            cut_window(compute.window_bytes // compute.processes, batch=_share(train), row_bytes=row_bytes)
    elif stored is not None:
        choice = Choice("store", "they are there", compute.window_bytes)
    else:
        row_bytes = _row_bytes(plan, experiment, find)
        choice = _by_room(train, prices(), room(latents), row_bytes=row_bytes)
    if choice.source == "rolling" and this_machine().uses_gpu(latents.step.compute):
        shared = f"{choice.reason}; on the GPUs that train it saves nothing over live"
        return replace(choice, reason=shared)
    return choice


def _by_room(train: Planned, estimates: tuple[Estimate, ...], free: int, *, row_bytes: int | None) -> Choice:
    """A store where all that is missing fits; else a window in half of what the rest leaves; else none."""
    compute = train_compute(train.step.compute)
    sizes = {each.planned.step.name: each.bytes for each in estimates}
    latents = sizes[train.step.inputs[LATENTS]]
    if latents is None:
        return Choice("store", "how many bytes they take is not known yet", compute.window_bytes)
    room, needed = int(free * (1 - MARGIN)), int(total_bytes(estimates).known)
    size, left = about(bytes_text(latents)), bytes_text(free)
    if needed <= room:
        return Choice("store", f"{size} fit, {left} are free", compute.window_bytes)
    if _measures(train):
        reason = (
            f"{size} may not fit, {left} are free; but train.latents.std is measured and takes a whole store, and a "
            "number there (0.2 for t5-small) would do without"
        )
        return Choice("store", reason, compute.window_bytes)
    heldout = sizes[train.step.inputs[HELDOUT]] if HELDOUT in train.step.inputs else 0
    rest = needed - latents - (heldout or 0)
    fits = max(1, min(compute.window_bytes, (room - rest) // 2))
    why = f"{size} do not fit, {left} are free and {MARGIN:.0%} of that is left alone"
    if row_bytes is not None and fits < compute.processes * least_window(_share(train), row_bytes):
        return Choice("live", f"{why}; nor does a window of two steps", compute.window_bytes)
    return Choice("rolling", why, fits)


def _measures(train: Planned) -> bool:
    """Whether it takes the scale of its latents from a whole store; a distillation has its teacher's."""
    section = train.step.section
    return isinstance(section, Train) and section.latents.std == "measured"


def _share(train: Planned) -> int:
    """Most rows of a step that one process takes."""
    section = train.step.section
    assert isinstance(section, Training)
    return -(-section.batch // train.step.compute.processes)


def _row_bytes(plan: Plan, experiment: Experiment, find: Find) -> int | None:
    """Of a row's states, where the encoder's width is known."""
    encoder = find(plan["fetch-encoder"]) if "fetch-encoder" in plan.names() else None
    width = width_of(experiment, encoder)
    if width is None:
        return None
    return experiment.tokenize.length * width * DTYPE_BYTES[experiment.encode.dtype]


def _forgiving(find: Find) -> Find:
    """A damaged artifact counts as missing: whoever uses it will say so."""

    def found(planned: Planned) -> Artifact | None:
        try:
            return find(planned)
        except Damaged:
            return None

    return found
