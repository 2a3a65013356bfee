"""How a table is printed: ours and published side by side, then what is missing, with its price."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table as Grid

from elf.flows.plan_printing import print_wrapped
from elf.flows.table_needs import Need
from elf.flows.table_rows import Filled, Found
from elf.pipeline.wording import DASH, about_bytes, about_seconds, count_of
from elf.stages.ledger import Ledger
from elf.stages.ledger_text import rows_of_ledger, sentences
from elf.stages.machine import this_machine
from elf.stages.tables import Figure, Score, Table
from elf.stages.totals import Total

MISSING = "—"
MARK = "†"
LISTED = 8
"""Settings of a configuration that are named; more are counted."""
ROOMY = 2
"""Scores beside which there is room for the word."""


def print_table(out: Console, table: Table, groups: Sequence[tuple[str, Sequence[Filled]]]) -> None:
    """The rows; what is degenerate is marked, and said under them."""
    out.print(f"[bold]{table.about}[/]", highlight=False)
    grid = Grid(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    grid.add_column("", overflow="fold")
    for score in table.scores:
        grid.add_column(f"ours\n{score.head}", justify="right", no_wrap=True)
    grid.add_column("\ntexts", justify="right", no_wrap=True)
    published = "published" if len(table.scores) <= ROOMY else "publ."
    for score in table.scores:
        grid.add_column(f"{published}\n{score.head}", justify="right", no_wrap=True, style="dim")
    for title, rows in groups:
        if title:
            grid.add_row(f"[bold]{title}[/]")
        for row in rows:
            indent = "  " if title else ""
            grid.add_row(f"{indent}{row.label}", *cells(row, table.scores))
    out.print(grid)
    for note in notes(groups):
        print_wrapped(out, note, "yellow")


def cells(row: Filled, scores: Sequence[Score]) -> list[str]:
    """Our scores, how many texts they are of, and the published ones."""
    published = [*row.published, *[None] * (len(scores) - len(row.published))]
    theirs = [figure_text(each, score) for each, score in zip(published, scores, strict=True)]
    if not row.published:
        theirs = [""] * len(scores)
    if row.found is None:
        return [*[""] * len(scores), "", *theirs]
    if row.found.metrics is None:
        return [*[MISSING] * len(scores), "", *theirs]
    metrics = row.found.metrics
    ours = [score_text(metrics["scores"].get(score.name), score) for score in scores]
    if metrics["degenerate"]:
        ours[0] = f"{MARK} {ours[0]}"
    return [*ours, _texts(metrics["counts"]), *theirs]


def figure_text(figure: Figure | None, score: Score) -> str:
    if figure is None:
        return DASH
    digits = 1 if figure.value >= 1000 else score.digits
    error = "" if figure.error is None else f" ±{figure.error:.{digits}f}"
    return f"{figure.value:,.{digits}f}{error}"


def score_text(score: Mapping[str, Any] | None, column: Score) -> str:
    """A score with its error over seeds; of a single seed, over texts."""
    if score is None or score["value"] is None:
        return DASH
    error = score["se_seed"] if score["se_seed"] is not None else score["se_item"]
    return figure_text(Figure(score["value"], error), column)


def _texts(counts: Mapping[str, Any]) -> str:
    seeds = f"{counts['seeds']} × " if counts["seeds"] > 1 else ""
    return f"{seeds}{counts['texts'] // counts['seeds']:,}"


def notes(groups: Sequence[tuple[str, Sequence[Filled]]]) -> Iterator[str]:
    """Of rows that are there: which are degenerate and why, and what their errors are over."""
    there = [
        (row.label, row.found.metrics)
        for _, rows in groups
        for row in rows
        if row.found is not None and row.found.metrics is not None
    ]
    for label, metrics in there:
        if metrics["degenerate"]:
            yield f"{MARK} {label}: degenerate, {'; '.join(metrics['degenerate'])}."
    single = [label for label, metrics in there if metrics["counts"]["seeds"] == 1]
    if single:
        yield f"One seed, so that ± is over its texts: {', '.join(single)}."


def print_needs(out: Console, needs: Sequence[Need], ours: Sequence[Found], *, store: object) -> None:
    """What is there, and the commands for the rest."""
    there = sum(each.metrics is not None for each in ours)
    print_wrapped(out, f"Of {count_of(len(ours), 'row')} of ours, {there or 'none'} in {store}.")
    for text in _by_configuration(ours):
        print_wrapped(out, text)
    if not needs:
        return
    grid = Grid(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    grid.add_column(f"{MISSING} is built by", overflow="fold")
    for header in ("rows", "builds", "time", "bytes"):
        grid.add_column(header, justify="right", no_wrap=True)
    seconds, size = (sum(each, Total()) for each in ([n.seconds for n in needs], [n.bytes for n in needs]))
    for need in needs:
        grid.add_row(need.command, str(need.rows), str(need.builds), *_price(need.seconds, need.bytes))
    if len(needs) > 1:
        every = (sum(each.rows for each in needs), sum(each.builds for each in needs))
        price = _price(seconds, size)
        grid.add_row("all of these, in this order", *map(str, every), *price, style="bold")
    out.print(grid)
    if needs[0].more:
        print_wrapped(out, f"Each with {needs[0].more}")
    machine = this_machine()
    lacking = f"{seconds.lacking('time')}{size.lacking('size')}"
    print_wrapped(out, f"Time on {machine}, to a factor of {machine.factor}{lacking}.")


def print_cost(out: Console, ledger: Ledger) -> None:
    """Of the rows that are there."""
    *_, total = rows_of_ledger(ledger)
    print_wrapped(
        out, f"The rows that are there cost {total.operations} and {total.time}, with all that they rest on."
    )
    for sentence in sentences(ledger):
        print_wrapped(out, sentence)


def _by_configuration(ours: Sequence[Found]) -> Iterator[str]:
    """The settings or variants that rows are made of, those that are there apart."""
    configs: dict[str, list[Found]] = {}
    for each in ours:
        configs.setdefault(each.ours.config, []).append(each)
    for config, some in configs.items():
        names: dict[bool, list[str]] = {True: [], False: []}
        one = len({each.ours.setting for each in some}) == 1
        for each in some:
            setting, variant = each.ours.setting, each.ours.variant
            name = (variant if one else f"{variant}/{setting}") if variant else setting
            names[each.metrics is not None].append(name)
        told = [
            f"{', '.join(found) if len(found) <= LISTED else len(found)} {word}"
            for found, word in ((names[True], "there"), (names[False], "missing"))
            if found
        ]
        yield f"{config}: {'; '.join(told)}."


def _price(seconds: Total, size: Total) -> tuple[str, str]:
    return seconds.cell(about_seconds), size.cell(about_bytes)
