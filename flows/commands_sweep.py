"""``elf sweep``: the variants of a configuration, what they share built once, and one page of all of them."""

import json
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from elf.cache.files import make_folder
from elf.flows.commands_report import write_page
from elf.flows.failing import complain
from elf.flows.plan_printing import print_wrapped
from elf.flows.priced import Priced, price_plan
from elf.flows.remotes import elsewhere
from elf.flows.request import RUNS
from elf.flows.sweep_costs import Costs, cost_of, price_of
from elf.flows.sweep_running import Crew, Ended, command_of, run_members
from elf.flows.sweeping import Member, Members, load_sweep
from elf.flows.terminal import make_console
from elf.pipeline.errors import Failed
from elf.pipeline.runs import read_run
from elf.pipeline.wording import about_seconds, bytes_text, count_of, seconds_text


def plan_sweep(config: str, overrides: Sequence[str], store: str | None, *, as_json: bool) -> None:
    """Print what a sweep would build and what that costs; nothing is fetched or built."""
    sweep = load_sweep(config, overrides, store)
    remote = elsewhere(complain)
    priced = {member.variant: price_plan(member.request, remote, probe=False) for member in sweep}
    costs = price_of(sweep, priced)
    if as_json:
        print(json.dumps({"sweep": sweep.name, **costs.plain()}, indent=1))
        return
    out = make_console()
    out.print(_table(costs, planned=True))
    out.print()
    for text in _sums(sweep, costs, next(iter(priced.values()))):
        print_wrapped(out, text)


def run_sweep(
    config: str, overrides: Sequence[str], store: str | None, *, jobs: int, until: str | None
) -> None:
    """Run all variants, ``jobs`` at once, and write the page. Raises Failed naming those that did not finish."""
    sweep = load_sweep(config, overrides, store)
    out = make_console()
    out.print(f"[bold]{sweep.name}[/]  {_told(sweep)}", highlight=False)
    folder, before = make_folder(RUNS / f"{sweep.name}-sweep"), sweep.there()
    ended = _run(sweep, out, folder, store=store, jobs=jobs, until=until)
    bad = [each for each in ended if each.code != 0]
    good = [each.member for each in ended if each.code == 0]
    out.print()
    out.print(_table(cost_of(sweep, good, before=before), planned=False))
    if until is None and good:
        page = write_page([read_run(RUNS, member.run) for member in good], folder, alone=False)
        out.print(f"Report: {page}", highlight=False, soft_wrap=True)
    if bad:
        names = ", ".join(each.member.variant for each in bad)
        where = f"{folder}/VARIANT.log" if jobs > 1 else "above"
        raise Failed(
            f"{len(bad)} of the {count_of(len(sweep), 'variant')} did not finish: {names}. What each of them said "
            f"stands {where}. The same command goes on with them, and builds nothing twice."
        )


def _run(
    sweep: Members, out: Console, folder: Path, *, store: str | None, jobs: int, until: str | None
) -> list[Ended]:
    crew = Crew()

    def work(member: Member) -> Ended:
        out.print(f"\n[bold]begins[/]  {member.variant}", highlight=False)
        out.file.flush()  # what the variant says comes after it
        log = folder / f"{member.variant}.log" if jobs > 1 else None
        return crew.run(member, command_of(sweep, member, store, until), log=log)

    def ended(each: Ended) -> None:
        how = "done" if each.code == 0 else f"[red]ended with exit code {each.code}[/]"
        out.print(f"[bold]{each.member.variant}[/]  {how}, {seconds_text(each.seconds)}", highlight=False)

    return run_members(list(sweep), work, crew, jobs=jobs, ended=ended)


def _told(sweep: Members) -> str:
    steps, shared = sweep.distinct(), sweep.shared()
    return f"{count_of(len(sweep), 'variant')}, {count_of(len(steps), 'step')} in all, {len(shared)} of them shared"


def _table(costs: Costs, *, planned: bool) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("variant", overflow="fold")
    for header in ("its steps", "to build" if planned else "built now", "time", "bytes"):
        table.add_column(header, justify="right", no_wrap=True)
    for row in costs.rows:
        told = about_seconds(row.seconds) if planned else seconds_text(row.seconds)
        seconds = told if row.seconds else ""
        table.add_row(
            row.name or "[dim](shared)[/]", str(row.steps), str(row.builds), seconds, bytes_text(row.bytes)
        )
    return table


def _sums(sweep: Members, costs: Costs, one: Priced) -> list[str]:
    """What all of it comes to, and what sharing saves."""
    machine = one.machine
    return [
        f"{sweep.name}: {_told(sweep)}; {costs.builds} to build.",
        f"Time: {about_seconds(costs.seconds)} on {machine} (to a factor of {machine.factor}), one after another; "
        f"without sharing {about_seconds(costs.apart)}.",
        f"Disk: {bytes_text(costs.bytes)} more, {bytes_text(one.room.free)} free.",
    ]
