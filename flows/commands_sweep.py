"""``elf sweep``: the variants of a configuration, what they share built once, and one page of all of them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from elf.cache.files import make_folder
from elf.flows.commands_report import write_page
from elf.flows.failing import complain
from elf.flows.plan_printing import print_wrapped
from elf.flows.priced import Priced, price_plan
from elf.flows.remotes import elsewhere
from elf.flows.request import RUNS
from elf.flows.sweep_costs import DONE, PLANNED, Costs, cells_of, cost_of, price_of, spending_of
from elf.flows.sweep_running import Crew, Ended, command_of, run_members
from elf.flows.sweeping import Member, Members, load_sweep
from elf.flows.terminal import make_console
from elf.pipeline.errors import Failed
from elf.pipeline.runs import read_run
from elf.pipeline.wording import about_bytes, about_seconds, bytes_text, count_of, seconds_text


def plan_sweep(
    config: str, overrides: Sequence[str], store: str | None, *, until: str | None, as_json: bool
) -> None:
    """Print what a sweep would build and what that costs; nothing is fetched or built."""
    sweep = load_sweep(config, overrides, store, until=until)
    remote = elsewhere(complain)
    priced = {
        member.variant: price_plan(member.request, remote, probe=False, until=until) for member in sweep
    }
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
    config: str,
    overrides: Sequence[str],
    store: str | None,
    *,
    jobs: int,
    until: str | None,
    as_json: bool = False,
) -> None:
    """Run all variants, ``jobs`` at once, and write the page; for JSON what the variants say goes into logs, and how it
    goes on to standard error. Raises Failed naming those that did not finish."""
    sweep = load_sweep(config, overrides, store, until=until)
    out, logged = make_console(stderr=as_json), jobs > 1 or as_json
    out.print(f"[bold]{sweep.name}[/]  {_told(sweep)}", highlight=False)
    folder = make_folder(RUNS / f"{sweep.name}-sweep")
    ended = _run(sweep, out, folder, store=store, jobs=jobs, logged=logged)
    costs, page = cost_of(sweep, ended), None
    good = [each.member for each in ended if each.code == 0]
    if until is None and good:
        runs = [read_run(RUNS, member.run) for member in good]
        page = write_page(runs, folder, alone=False, spending=spending_of(costs))
    if as_json:
        print(json.dumps(_plain(sweep, ended, costs, page, folder), indent=1))
    else:
        out.print()
        out.print(_table(costs, planned=False))
        if page is not None:
            out.print(f"Report: {page}", highlight=False, soft_wrap=True)
    _refuse_unfinished(sweep, ended, f"in {folder}/VARIANT.log" if logged else "above")


def _refuse_unfinished(sweep: Members, ended: Sequence[Ended], where: str) -> None:
    bad = [each.member.variant for each in ended if each.code != 0]
    if bad:
        names = ", ".join(bad)
        raise Failed(
            f"{len(bad)} of the {count_of(len(sweep), 'variant')} did not finish: {names}. What each of them said "
            f"stands {where}. The same command goes on with them, and builds nothing twice."
        )


def _run(
    sweep: Members, out: Console, folder: Path, *, store: str | None, jobs: int, logged: bool
) -> list[Ended]:
    crew = Crew()

    def work(member: Member) -> Ended:
        out.print(f"\n[bold]begins[/]  {member.variant}", highlight=False)
        out.file.flush()  # what the variant says comes after it
        log = folder / f"{member.variant}.log" if logged else None
        return crew.run(member, command_of(sweep, member, store), log=log)

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
    for header in PLANNED if planned else DONE:
        table.add_column(header, justify="right", no_wrap=True)
    for row in costs.rows:
        table.add_row(row.name or "[dim](shared)[/]", *cells_of(row, planned=planned))
    return table


def _plain(
    sweep: Members, ended: Sequence[Ended], costs: Costs, page: Path | None, folder: Path
) -> dict[str, Any]:
    """For JSON: what ``--plan --json`` has, of what was done, and how each variant ended."""
    variants = [
        {
            "variant": each.member.variant,
            "run": each.member.run,
            "exit_code": each.code,
            "seconds": each.seconds,
            "log": str(folder / f"{each.member.variant}.log"),
        }
        for each in ended
    ]
    return {
        "sweep": sweep.name,
        "variants": variants,
        "report": None if page is None else str(page),
        **costs.plain(),
    }


def _sums(sweep: Members, costs: Costs, one: Priced) -> list[str]:
    """What all of it comes to, and what sharing saves."""
    machine = one.machine
    return [
        f"{sweep.name}: {_told(sweep)}; {costs.builds} to build.",
        f"Time: {costs.seconds.told(about_seconds)} on {machine} (to a factor of {machine.factor}), one after another; "
        f"without sharing {costs.apart.told(about_seconds)}{costs.seconds.lacking('time')}.",
        f"Disk: {costs.bytes.told(about_bytes)} to be written, {bytes_text(one.room.free)} free"
        f"{costs.bytes.lacking('size')}.",
    ]
