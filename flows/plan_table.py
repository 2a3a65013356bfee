"""``elf plan``: what would be reused and built, and what that costs in rows, bytes and time."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

from rich.console import Console
from rich.table import Table

from elf.cache.files import free_bytes
from elf.cache.manifest import short
from elf.cache.store import Artifact, Store
from elf.flows.failing import complain
from elf.flows.remotes import elsewhere
from elf.flows.request import Request, load_request
from elf.flows.terminal import make_console
from elf.pipeline.runner import needed
from elf.pipeline.sharing import Elsewhere
from elf.pipeline.wording import about, about_seconds, bytes_text, count_text
from elf.stages.estimate import estimate_plan
from elf.stages.machine import Machine, this_machine
from elf.stages.totals import Estimate, total_bytes, total_seconds

State: TypeAlias = Literal["hit", "remote", "build", "skip"]
"""In the store; to be pulled; to be built; not needed by what is built."""
_STATES: dict[State, str] = {
    "hit": "[green]hit[/]",
    "remote": "[green]remote[/]",
    "build": "build",
    "skip": "skip",
}


def show_plan(config: str, overrides: Sequence[str], store: str | None, *, as_json: bool) -> None:
    """Print the plan of an experiment; nothing is fetched, built or written."""
    request = load_request(config, overrides, store)
    seen = _look(request, elsewhere(complain))
    machine = this_machine()
    estimates = estimate_plan(
        request.plan, request.experiment, lambda planned: seen[planned.step.name].found, machine
    )
    rows = [Row(estimate, seen[estimate.planned.step.name].state) for estimate in estimates]
    if as_json:
        print(json.dumps(_plain(request.experiment.name, request.store, rows), indent=1))
    else:
        out = make_console()
        _print(out, request.experiment.name, request.store, rows, machine)
        if request.source is not None and request.trains(request.plan.names()):
            out.print(str(request.source), markup=False, highlight=False)


class _Seen(NamedTuple):
    """What became of the look for a step; ``found`` is here for a hit, and to be had from the remote."""

    state: State
    found: Artifact | None


class Row(NamedTuple):
    """One step of the table."""

    estimate: Estimate
    state: State


def _look(request: Request, remote: Elsewhere) -> dict[str, _Seen]:
    """Each step in the store, else at the remote if a run would ask there."""
    wanted = needed(request.plan, request.store, remote=remote)
    seen: dict[str, _Seen] = {}
    for planned in request.plan:
        name, place = planned.step.name, (planned.step.spec.name, planned.key)
        found = request.store.find(*place)
        if found is not None:
            seen[name] = _Seen("hit", found)
        elif name not in wanted:
            seen[name] = _Seen("skip", None)
        elif (manifest := remote.manifest(planned)) is not None:
            seen[name] = _Seen("remote", Artifact(request.store.path(*place), manifest))
        else:
            seen[name] = _Seen("build", None)
    return seen


def _print(out: Console, name: str, store: Store, rows: Sequence[Row], machine: Machine) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("step", no_wrap=True, max_width=24, overflow="ellipsis")
    table.add_column("key", no_wrap=True)
    table.add_column("", no_wrap=True)
    for header in ("rows", "bytes", "time"):
        table.add_column(header, justify="right", no_wrap=True)
    for each, state in rows:
        known = each.found is not None
        table.add_row(
            each.planned.step.name,
            f"[dim]{short(each.planned.key)}[/]",
            _STATES[state],
            count_text(each.rows) if known else about(count_text(each.rows)),
            bytes_text(each.bytes) if known else about(bytes_text(each.bytes)),
            about_seconds(each.seconds) if state == "build" else "",
        )
    out.print(table)
    out.print()
    _print_sums(out, name, store, rows, machine)


def _print_sums(out: Console, name: str, store: Store, rows: Sequence[Row], machine: Machine) -> None:
    states = [row.state for row in rows]
    if not {"build", "remote"} & set(states):
        out.print(f"{name}: every step is there; a run builds nothing.", highlight=False)
        return
    remote = f", {states.count('remote')} are pulled from the remote" if "remote" in states else ""
    out.print(f"{name}: {states.count('hit')} of {len(rows)} steps are there{remote}.", highlight=False)
    if "build" in states:
        out.print(
            f"Time: {about_seconds(_seconds(rows))} for the rest on {machine} (to a factor of 3).",
            highlight=False,
        )
    need, free = _bytes(rows), free_bytes(store.root)
    words = f"Disk: needs {about(bytes_text(need))} in {_shown(store.root)}, {bytes_text(free)} free"
    if need > free:
        out.print(f"[bold red]{words}: {bytes_text(need - free)} too little.[/]", highlight=False)
    else:
        out.print(f"{words}.", highlight=False)


def _plain(name: str, store: Store, rows: Sequence[Row]) -> dict[str, Any]:
    return {
        "experiment": name,
        "store": str(store.root),
        "steps": [
            {
                "step": each.planned.step.name,
                "stage": each.planned.step.spec.name,
                "key": each.planned.key,
                "state": state,
                "rows": each.rows,
                "bytes": each.bytes,
                "seconds": each.seconds,
            }
            for each, state in rows
        ],
        "bytes_needed": _bytes(rows),
        "bytes_free": free_bytes(store.root),
        "seconds": _seconds(rows),
    }


def _bytes(rows: Sequence[Row]) -> int:
    """Bytes still to be written: built or pulled, each key once."""
    pulled = {row.estimate.planned.key: row.estimate.bytes or 0 for row in rows if row.state == "remote"}
    return total_bytes(_builds(rows)) + sum(pulled.values())


def _seconds(rows: Sequence[Row]) -> float:
    return total_seconds(_builds(rows))


def _builds(rows: Sequence[Row]) -> list[Estimate]:
    return [row.estimate for row in rows if row.state == "build"]


def _shown(path: Path) -> str:
    """``path`` relative to here where it lies below."""
    here = Path.cwd()
    return f"./{path.relative_to(here)}" if path.is_relative_to(here) else str(path)
