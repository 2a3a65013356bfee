"""A plan with its price: what of it is there, and what the rest costs on this machine and its disk."""

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, TypeAlias

from elf.cache.files import free_bytes
from elf.cache.store import Artifact
from elf.flows.failing import complain
from elf.flows.request import Request
from elf.pipeline.runner import needed
from elf.pipeline.sharing import Elsewhere, promised
from elf.stages.breakeven import BreakEven, weigh
from elf.stages.disk import disk_speed, known_disk
from elf.stages.estimate import Estimator, TrainingSpeed
from elf.stages.experiment import TRAIN
from elf.stages.machine import Machine, measured_machine, this_machine
from elf.stages.room import Room, measure_room
from elf.stages.totals import Estimate, Total, total_seconds

State: TypeAlias = Literal["hit", "remote", "build", "skip"]
"""In the store; to be pulled; to be built; not needed by what is built."""


class Row(NamedTuple):
    """One step of the table."""

    estimate: Estimate
    state: State


@dataclass(frozen=True, slots=True)
class Priced:
    """A plan with what it costs. ``break_even`` and ``training`` are None where nothing is to be trained or too little
    is known."""

    request: Request
    rows: tuple[Row, ...]
    room: Room
    machine: Machine
    break_even: BreakEven | None
    training: TrainingSpeed | None

    @property
    def builds(self) -> list[Estimate]:
        return [row.estimate for row in self.rows if row.state == "build"]

    @property
    def seconds(self) -> Total:
        return total_seconds(self.builds)


class _Seen(NamedTuple):
    """What became of the look for a step; ``found`` is here for a hit, and to be had from the remote."""

    state: State
    found: Artifact | None


def price_plan(request: Request, remote: Elsewhere, *, probe: bool, until: str | None = None) -> Priced:
    """Nothing is fetched or built; the machine is measured where it was not before, or if ``probe``. ``until``: a stage
    or step that a run would stop at, beyond which there is no row."""
    seen = _look(request, remote, until)
    if probe or any(each.state == "build" for each in seen.values()):
        machine = measured_machine(complain, anew=probe)
        machine = replace(machine, disk=disk_speed(request.store.root, anew=probe))
    else:
        machine = replace(this_machine(), disk=known_disk(request.store.root))
    work = Estimator(request.experiment, machine)
    estimates = work.walk(request.plan, lambda planned: seen[planned.step.name].found)
    within = request.plan.names() if until is None else request.plan.upstream(request.plan.select(until))
    names = set(within)
    told = (each for each in estimates if each.planned.step.name in names)
    rows = tuple(Row(each, seen[each.planned.step.name].state) for each in told)
    coming = [replace(row.estimate, found=None) for row in rows if row.state in ("build", "remote")]
    room = measure_room(coming, free_bytes(request.store.root), request.begun)
    trains = [each.planned for each, state in rows if each.planned.step.spec is TRAIN and state == "build"]
    break_even, speed = (weigh(work, trains[0]), work.training_speed(trains[0])) if trains else (None, None)
    return Priced(request, rows, room, machine, break_even, speed)


def _look(request: Request, remote: Elsewhere, until: str | None) -> dict[str, _Seen]:
    """Each step in the store, else at the remote if a run would ask there."""
    wanted = needed(request.plan, request.store, until=until, remote=remote)
    seen: dict[str, _Seen] = {}
    for planned in request.plan:
        name, found = planned.step.name, request.store.find(*planned.place)
        if found is not None:
            seen[name] = _Seen("hit", found)
        elif name not in wanted:
            seen[name] = _Seen("skip", None)
        elif (held := promised(planned, request.store, remote)) is not None:
            seen[name] = _Seen("remote", held)
        else:
            seen[name] = _Seen("build", None)
    return seen
