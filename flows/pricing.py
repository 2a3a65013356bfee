"""What a request will cost, before it begins: an estimate per step, and a refusal of what cannot fit on the disk."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from elf.cache.errors import Damaged
from elf.cache.files import free_bytes, refuse_unwritable
from elf.cache.manifest import JSON
from elf.cache.store import Artifact
from elf.flows.request import Request
from elf.pipeline.plan import Plan, Planned
from elf.pipeline.sharing import Elsewhere, promised
from elf.stages.disk import known_disk
from elf.stages.estimate import Estimator
from elf.stages.machine import this_machine
from elf.stages.room import measure_room, refuse_what_cannot_fit
from elf.stages.totals import Estimate


def price(
    request: Request,
    steps: Collection[str],
    *,
    forced: Collection[str],
    remote: Elsewhere,
    warn: Callable[[str], None],
) -> Request:
    """The request with a forecast for each of ``steps`` that will be built; nothing is measured for it.

    Raises Failed where what is to be built or pulled cannot fit on the store's disk, ``warn`` hears of what may not;
    Unwritable where nothing can be written there.
    """
    brought: dict[str, Artifact] = {}

    def find(planned: Planned) -> Artifact | None:
        name = planned.step.name
        try:
            found = request.store.find(*planned.place)
        except Damaged:  # to be built anew, or to be complained of by whoever wants it
            found = None
        if found is None and name in steps:
            found = promised(planned, request.store, remote)
            if found is not None:
                brought[name] = found
        return found

    if all(find(request.plan[name]) is not None and name not in forced for name in steps) and not brought:
        return request
    machine = replace(this_machine(), disk=known_disk(request.store.root))
    work = Estimator(request.experiment, machine)
    estimates = {each.planned.step.name: each for each in work.walk(request.plan, find)}
    builds = [estimates[name] for name in steps if estimates[name].found is None or name in forced]
    pulled = [replace(estimates[name], found=None) for name in steps if name in brought]
    room = measure_room([*pulled, *builds], free_bytes(request.store.root), request.begun)
    told = refuse_what_cannot_fit(room, request.store.root)
    if told is not None:
        warn(told)
    refuse_unwritable(request.store.root)
    day = machine.speed.measured
    forecasts = {each.planned.step.name: _forecast(work.fresh(each.planned), day) for each in builds}
    plan = Plan(replace(each.step, forecast=forecasts.get(each.step.name, {})) for each in request.plan)
    return replace(request, plan=plan)


def _forecast(estimate: Estimate, measured: str) -> Mapping[str, JSON]:
    return {
        "seconds": estimate.seconds,
        "bytes": estimate.bytes,
        "rows": estimate.rows,
        "tokens": estimate.tokens,
        "machine_measured": measured or None,
    }
