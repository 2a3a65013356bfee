"""``elf compare RUN/ROW RUN/ROW``: two rows of score tables, of the same items, with a paired test."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.table import Table

from elf.flows.request import RUNS
from elf.flows.terminal import make_console
from elf.pipeline.errors import Failed, Misconfigured
from elf.pipeline.runs import read_run

if TYPE_CHECKING:
    from elf.stages.comparing import Scored
    from elf.stages.intervals import Difference


def compare_rows(first: str, second: str, *, as_json: bool) -> None:
    """Print the difference second − first of every score that both have, and what must be said beside it."""
    from elf.stages.comparing import compare_scores, remarks
    from elf.stages.intervals import FEW

    sides = _read(first), _read(second)
    found, told = compare_scores(*sides), remarks(*sides)
    if as_json:
        plain = {
            name: None if each is None else {**asdict(each), "difference": each.value}
            for name, each in found.items()
        }
        print(
            json.dumps(
                {"first": first, "second": second, "scores": plain, "notes": told}, indent=1, allow_nan=False
            )
        )
        return
    out = make_console()
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for header in ("score", first, second, "difference", "95 %", "p"):
        table.add_column(header, justify="left" if header == "score" else "right", overflow="fold")
    known = {name: each for name, each in found.items() if each is not None}
    for name, each in known.items():
        table.add_row(name, *_cells(each))
    out.print(table)
    items = max(each.n for each in known.values())
    out.print(f"Paired bootstrap of {items:,} items.", style="dim", highlight=False)
    if items < FEW:
        out.print(f"Fewer than {FEW} items: intervals are rough.", style="dim", highlight=False)
    for text in told:
        out.print(text, style="yellow", highlight=False, markup=False)


def _cells(each: "Difference") -> tuple[str, ...]:
    low, high = each.interval
    return (
        f"{each.first:.4g}",
        f"{each.second:.4g}",
        f"{each.value:+.3g}",
        f"{low:+.3g} to {high:+.3g}",
        "< 0.002" if each.p < 0.002 else f"{each.p:.3f}",
    )


def _read(place: str) -> "Scored":
    from elf.stages.comparing import Scored

    run, slash, row = place.partition("/")
    if not (run and slash and row):
        raise Misconfigured(
            f"'{place}' names no row of a score table; give RUN/ROW, for example quickstart/ode."
        )
    steps = read_run(RUNS, run).steps
    scores = steps.get(f"evaluate-{row}")
    samples = steps.get(f"sample-{row}") or steps.get(f"control-{row}")
    if scores is None or samples is None:
        known = ", ".join(name.removeprefix("evaluate-") for name in steps if name.startswith("evaluate-"))
        raise Failed(f"The run '{run}' has no scored row '{row}'; it has: {known or 'none'}.")
    return Scored.read(place, samples, scores)
