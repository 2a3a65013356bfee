"""``elf plan``: what would be reused and built, and what that costs in rows, tokens, bytes, seconds and disk."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from elf.flows.failing import complain
from elf.flows.plan_printing import print_plan
from elf.flows.priced import Priced, price_plan
from elf.flows.remotes import elsewhere
from elf.flows.request import load_request
from elf.flows.terminal import make_console
from elf.stages.machine import Machine


def show_plan(
    config: str, overrides: Sequence[str], store: str | None, *, probe: bool, as_json: bool
) -> None:
    """Print the plan of an experiment; nothing is fetched or built. ``probe`` measures the machine anew."""
    request = load_request(config, overrides, store)
    priced = price_plan(request, elsewhere(complain), probe=probe)
    if as_json:
        print(json.dumps(_plain(priced), indent=1))
    else:
        print_plan(make_console(), priced)


def _plain(priced: Priced) -> dict[str, Any]:
    request, machine = priced.request, priced.machine
    return {
        "experiment": request.experiment.name,
        "store": str(request.store.root),
        "steps": [
            {
                "step": each.planned.step.name,
                "stage": each.planned.step.spec.name,
                "key": each.planned.key,
                "state": state,
                "rows": each.rows,
                "tokens": each.tokens,
                "bytes": each.bytes,
                "seconds": each.seconds,
            }
            for each, state in priced.rows
        ],
        "bytes_needed": None if priced.room.unknown else priced.room.expected,
        "bytes_needed_at_least": priced.room.least,
        "bytes_needed_unknown": list(priced.room.unknown),
        "bytes_free": priced.room.free,
        "fits": priced.room.fits,
        **priced.seconds.plain("seconds"),
        "latents": None if request.source is None else request.source.source,
        "break_even": None if priced.break_even is None else priced.break_even.plain(),
        "training": None if priced.training is None else asdict(priced.training),
        "machine": _plain_machine(machine),
    }


def _plain_machine(machine: Machine) -> dict[str, Any]:
    """Rates are in operations and bytes a second, those of products 1,024 wide."""
    disk = machine.disk
    return {
        "cores": machine.cores,
        "gpus": machine.gpus,
        "measured": machine.speed.measured or None,
        "measured_while_busy": machine.speed.busy,
        "factor": machine.factor,
        "core": machine.rate(1, 1024),
        "all_cores": machine.rate(machine.cores, 1024),
        "gpu": machine.speed.gpu if machine.accelerated else None,
        "disk_write": None if disk is None else disk.write,
        "disk_read": None if disk is None else disk.read,
    }
