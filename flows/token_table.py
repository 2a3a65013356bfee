"""The table of training tokens: what shipped configurations train on, counted both ways, beside published counts."""

import json
from dataclasses import asdict, dataclass

from rich.table import Table as Grid

from elf.flows.plan_printing import print_wrapped
from elf.flows.table_rows import Library
from elf.flows.terminal import make_console
from elf.pipeline.wording import DASH, amount_text
from elf.stages.machine import this_machine
from elf.stages.published import TRAINED, TRAINED_ON_PAIRS
from elf.stages.table_tokens import Seen, tokens_seen

CONFIGS = ("owt-full", "owt-M", "owt-L", "owt-pd", "wmt14-de-en", "xsum")
COUNTED = (
    "By documents: tokens of the training documents, an end mark each, times epochs. By rows: optimiser steps, times "
    "rows of a step, times the length of a row, padding and conditions included. ~: from the settings and their hints, "
    "as the rows are not in the store yet. Published: arXiv 2605.10938, not counted here."
)


@dataclass(frozen=True, slots=True)
class Line:
    """A training run of a configuration."""

    config: str
    seen: Seen


def show_tokens(library: Library, *, as_json: bool) -> None:
    """Print it; nothing is built."""
    lines: dict[str, Line] = {}
    for config in CONFIGS:
        plan = library.request(config).plan
        for seen in _seen(config, library):  # a run that several configurations share stands once
            lines.setdefault(plan[seen.step].key, Line(config, seen))
    if as_json:
        ours = [
            {"config": each.config, **asdict(each.seen), "rows_times_length": each.seen.rows}
            for each in lines.values()
        ]
        published = [asdict(each) for each in (*TRAINED, *TRAINED_ON_PAIRS)]
        print(json.dumps({"table": "tokens", "ours": ours, "published": published}, indent=1))
        return
    out = make_console()
    grid = Grid(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    grid.add_column("trained", overflow="fold")
    for header in ("steps", "rows × length", "epochs", "by documents", "by rows"):
        grid.add_column(header, justify="right", no_wrap=True)
    for each in lines.values():
        seen = each.seen
        name = each.config if seen.step == "train" else f"{each.config}, {seen.step}"
        grid.add_row(
            name,
            amount_text(seen.steps),
            f"{seen.batch:,} × {seen.length:,}",
            f"{seen.epochs:.3g}",
            seen.told(seen.documents),
            seen.told(seen.rows),
        )
    for theirs in (*TRAINED, *TRAINED_ON_PAIRS):
        rows = DASH if theirs.by_rows is None else amount_text(round(theirs.by_rows))
        documents = amount_text(round(theirs.by_documents))
        grid.add_row(f"{theirs.method}, published", "", "", "", documents, rows, style="dim")
    out.print(grid)
    out.print()
    print_wrapped(out, COUNTED)


def _seen(config: str, library: Library) -> list[Seen]:
    request = library.request(config)
    return tokens_seen(
        request.experiment, request.plan, lambda each: request.store.find(*each.place), this_machine()
    )
