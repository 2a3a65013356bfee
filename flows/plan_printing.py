"""How a plan is printed: a table of its steps, then what it comes to. No line is wider than 80 columns."""

import textwrap
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

from elf.cache.manifest import short
from elf.flows.priced import Priced, Row
from elf.pipeline.wording import about, about_bytes, about_seconds, amount_text, bytes_text
from elf.stages.load import busy_text
from elf.stages.machine import Machine
from elf.stages.totals import Total

WIDTH = 80
_STATES = {"hit": "[green]hit[/]", "remote": "[green]remote[/]", "build": "build", "skip": "[dim]skip[/]"}
_NUMBERS = ("rows", "tokens", "bytes", "time")


def print_plan(out: Console, priced: Priced) -> None:
    """The table, then sums, disk, speed and what a store of latents saves."""
    out.print(_table(priced, width_of(out)))
    out.print()
    for text, style in _sums(priced):
        print_wrapped(out, text, style)


def print_wrapped(out: Console, text: str, style: str | None = None) -> None:
    """A paragraph as wide as the terminal, and no wider than a plan's table."""
    for line in textwrap.wrap(text, width_of(out), subsequent_indent="  ", break_long_words=False):
        out.print(line, style=style, markup=False, highlight=False, soft_wrap=True)


def width_of(out: Console) -> int:
    """Columns that text may take: a terminal of more than WIDTH is no reason for long lines."""
    return max(20, min(WIDTH, out.width))


def _table(priced: Priced, wide: int) -> Table:
    cells = [_cells(row) for row in priced.rows]
    width = sum(max(map(len, column)) for column in zip(_NUMBERS, *(each[1:] for each in cells), strict=True))
    states = max(len(row.state) for row in priced.rows)
    left = wide - width - states - len(short(priced.rows[0].estimate.planned.key)) - 2 * 6
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("step", max_width=max(12, left), overflow="fold")
    table.add_column("key", no_wrap=True)
    table.add_column("", no_wrap=True)
    for header in _NUMBERS:
        table.add_column(header, justify="right", no_wrap=True)
    for row, (name, *numbers) in zip(priced.rows, cells, strict=True):
        key = f"[dim]{short(row.estimate.planned.key)}[/]"
        table.add_row(name, key, _STATES[row.state], *numbers)
    return table


def _cells(row: Row) -> tuple[str, str, str, str, str]:
    """Name and figures; estimated ones are marked."""
    each, state = row
    figures = (amount_text(each.rows), amount_text(each.tokens), bytes_text(each.bytes))
    rows, tokens, size = figures if each.found is not None else map(about, figures)
    return each.planned.step.name, rows, tokens, size, about_seconds(each.seconds) if state == "build" else ""


def _sums(priced: Priced) -> Iterator[tuple[str, str | None]]:
    """Lines of text and their style."""
    name, store = priced.request.experiment.name, priced.request.store.root
    states = [row.state for row in priced.rows]
    if not {"build", "remote"} & set(states):
        yield f"{name}: every step is there; a run builds nothing.", None
        return
    pulled = f", {states.count('remote')} are pulled from the remote" if "remote" in states else ""
    yield f"{name}: {states.count('hit')} of {len(states)} steps are there{pulled}.", None
    if "build" in states:
        machine = priced.machine
        yield (
            f"Time: {priced.seconds.told(about_seconds)} for the rest on {machine} (to a factor of {machine.factor})"
            f"{priced.seconds.lacking('time')}.",
            None,
        )
        yield _speed(machine), "dim"
        trains = priced.training is not None
        train = priced.request.experiment.compute.train
        if told := busy_text(train if trains and not machine.uses_gpu(train) else None):
            yield told, "yellow"
        yield from _slow(priced)
    room = priced.room
    size = Total(room.expected, room.unknown)
    words = (
        f"Disk: needs {size.told(about_bytes)} in {_shown(store)}, {bytes_text(room.free)} free"
        f"{size.lacking('size')}"
    )
    if room.fits:
        yield f"{words}.", None
    else:
        refused = "; `elf run` does not start" if room.least > room.usable else ""
        yield f"{words}: {bytes_text(room.expected - room.usable)} too little{refused}.", "bold red"
    if priced.training is not None:
        yield str(priced.training), None
    if priced.break_even is not None:
        for line in priced.break_even.lines():
            yield line, None
    if priced.request.source is not None and priced.request.trains(priced.request.plan.names()):
        yield str(priced.request.source), None


def _speed(machine: Machine) -> str:
    """What the times rest on."""
    core, together = (f"{machine.rate(threads, 1024) / 1e9:.3g}" for threads in (1, machine.cores))
    parts = [f"{core} GFLOP/s a core" + (f", {together} together" if machine.cores > 1 else "")]
    if machine.accelerated:
        best = max(machine.speed.gpu["bfloat16"].values())
        parts.append(f"{best / 1e12:.3g} TFLOP/s a GPU in bfloat16")
    if machine.disk is not None:
        parts.append(f"disk {machine.disk}")
    day, busy = machine.speed.measured, " on a busy machine" if machine.speed.busy else ""
    when = f"measured {day}{busy}; --probe measures anew" if day else "of the reference, not measured here"
    return f"Speed: {', '.join(parts)} ({when})."


def _slow(priced: Priced) -> Iterator[tuple[str, str | None]]:
    """A warning where training in bfloat16 is the slower way."""
    machine, train = priced.machine, priced.request.experiment.train
    if priced.break_even is None or train.precision != "bf16" or machine.accelerated:
        return
    times = machine.rate(machine.cores, 1024) / machine.rate(machine.cores, 1024, "bfloat16")
    if times > 1.2:
        yield (
            f"train.precision bf16: here it is {times:,.2g} times slower than float32.",
            "yellow",
        )


def _shown(path: Path) -> str:
    """``path`` relative to here where it lies below."""
    here = Path.cwd()
    return f"./{path.relative_to(here)}" if path.is_relative_to(here) else str(path)
