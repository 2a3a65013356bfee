"""``elf plan``: what would be reused and built, and what that costs in rows, bytes and time."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from elf.cache.files import free_bytes
from elf.cache.manifest import short
from elf.cache.store import Store
from elf.flows.request import load_request
from elf.flows.terminal import make_console
from elf.pipeline.wording import about, about_seconds, bytes_text, count_text
from elf.stages.estimate import Estimate, Machine, estimate_plan, this_machine, total_bytes, total_seconds


def show_plan(config: str, overrides: Sequence[str], store: str | None, *, as_json: bool) -> None:
    """Print the plan of an experiment; nothing is fetched, built or written."""
    request = load_request(config, overrides, store)
    machine = this_machine()

    estimates = estimate_plan(
        request.plan,
        request.experiment,
        lambda planned: request.store.find(planned.step.spec.name, planned.key),
        machine,
    )
    if as_json:
        print(json.dumps(_plain(request.experiment.name, request.store, estimates), indent=1))
    else:
        _print(make_console(), request.experiment.name, request.store, estimates, machine)


def _print(out: Console, name: str, store: Store, estimates: Sequence[Estimate], machine: Machine) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("step", no_wrap=True, max_width=24, overflow="ellipsis")
    table.add_column("key", no_wrap=True)
    table.add_column("", no_wrap=True)
    for header in ("rows", "bytes", "time"):
        table.add_column(header, justify="right", no_wrap=True)
    for each in estimates:
        hit = each.found is not None
        table.add_row(
            each.planned.step.name,
            f"[dim]{short(each.planned.key)}[/]",
            "[green]hit[/]" if hit else "build",
            count_text(each.rows) if hit else about(count_text(each.rows)),
            bytes_text(each.bytes) if hit else about(bytes_text(each.bytes)),
            "" if hit else about_seconds(each.seconds),
        )
    hits = sum(each.found is not None for each in estimates)
    needed, seconds, free = total_bytes(estimates), total_seconds(estimates), free_bytes(store.root)
    out.print(table)
    out.print()
    if hits == len(estimates):
        out.print(f"{name}: every step is there; a run builds nothing.", highlight=False)
        return
    out.print(f"{name}: {hits} of {len(estimates)} steps are there.", highlight=False)
    out.print(
        f"Time: {about_seconds(seconds)} for the rest on {machine} (to a factor of 3).",
        highlight=False,
    )
    words = f"Disk: needs {about(bytes_text(needed))} in {_shown(store.root)}, {bytes_text(free)} free"
    if needed > free:
        out.print(f"[bold red]{words}: {bytes_text(needed - free)} too little.[/]", highlight=False)
    else:
        out.print(f"{words}.", highlight=False)


def _plain(name: str, store: Store, estimates: Sequence[Estimate]) -> dict[str, Any]:
    return {
        "experiment": name,
        "store": str(store.root),
        "steps": [
            {
                "step": each.planned.step.name,
                "stage": each.planned.step.spec.name,
                "key": each.planned.key,
                "state": "build" if each.found is None else "hit",
                "rows": each.rows,
                "bytes": each.bytes,
                "seconds": each.seconds,
            }
            for each in estimates
        ],
        "bytes_needed": total_bytes(estimates),
        "bytes_free": free_bytes(store.root),
        "seconds": total_seconds(estimates),
    }


def _shown(path: Path) -> str:
    """``path`` relative to here where it lies below."""
    here = Path.cwd()
    return f"./{path.relative_to(here)}" if path.is_relative_to(here) else str(path)
