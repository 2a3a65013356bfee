"""``elf table NAME``: a table of the paper, ours beside published, with what it takes to fill it."""

import difflib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from typing import Any

from rich.table import Table as Grid

from elf.flows.failing import complain
from elf.flows.plan_printing import print_wrapped
from elf.flows.remotes import elsewhere
from elf.flows.table_figure import write_figure
from elf.flows.table_needs import Need, needs_of
from elf.flows.table_printing import print_cost, print_needs, print_table
from elf.flows.table_rows import Filled, Found, Library, fill
from elf.flows.terminal import make_console
from elf.flows.token_table import show_tokens
from elf.pipeline.errors import Misconfigured
from elf.stages.disk import known_disk
from elf.stages.ledger import Ledger, keep_ledger
from elf.stages.machine import this_machine
from elf.stages.sample_settings import Sample
from elf.stages.table_tokens import Seen, tokens_seen
from elf.stages.table_words import differences, same_judge
from elf.stages.tables import TABLES, TOKENS, Figure, Table


def list_tables(*, as_json: bool) -> None:
    """One line each."""
    if as_json:
        print(json.dumps([{"table": each.name, "about": each.about} for each in TABLES.values()], indent=1))
        return
    out = make_console()
    grid = Grid(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    for table in TABLES.values():
        grid.add_row(table.name, table.about)
    out.print(grid)


def show_table(
    name: str, overrides: Sequence[str], store: str | None, *, figure: str | None, as_json: bool
) -> None:
    """Print a table, and draw it where a file is named for that; nothing is built. Raises Misconfigured for a name that
    is none."""
    table = TABLES.get(name)
    if table is None:
        near = difflib.get_close_matches(name, TABLES, n=1)
        hint = f" Did you mean '{near[0]}'?" if near else ""
        raise Misconfigured(f"There is no table '{name}'.{hint} `elf table` lists those there are.")
    library = Library(overrides, store)
    if name == TOKENS:
        if figure is not None:
            raise Misconfigured(f"The table {name} has no figure; leave --figure out.")
        show_tokens(library, as_json=as_json)
        return
    groups = fill(table, library)
    drawn = None if figure is None else write_figure(table, groups, figure)
    rows = [row for _, some in groups for row in some]
    ours = [row.found for row in rows if row.found is not None]
    needs = needs_of(rows, library, elsewhere(complain))
    told = list(_differences(table, ours, library))
    if as_json:
        print(json.dumps(_plain(table, groups, needs, told, library), indent=1, allow_nan=False))
        return
    out = make_console()
    print_table(out, table, groups)
    out.print()
    root = library.request(ours[0].ours.config, ours[0].ours.variant).store.root
    print_needs(out, needs, ours, store=root)
    if any(each.artifact for each in ours):
        out.print()
        print_cost(out, _ledger(ours))
    out.print()
    for about, words in told:
        print_wrapped(out, f"{about.capitalize()}: {words}")
    if drawn is not None:
        out.print(f"Figure: {drawn}", highlight=False, soft_wrap=True)


def _differences(table: Table, ours: Sequence[Found], library: Library) -> Iterable[tuple[str, str]]:
    """From the first row's configuration; the settings and the tokens are those of all rows."""
    first = library.request(ours[0].ours.config, ours[0].ours.variant).experiment
    return differences(table, first, [_setting(each, library) for each in ours], _tokens(ours, library))


def _ledger(ours: Sequence[Found]) -> Ledger:
    """Of all rows that are there."""
    return keep_ledger(
        {
            f"{each.ours.variant or each.ours.config}/{each.step}": each.artifact
            for each in ours
            if each.artifact
        }
    )


def _setting(found: Found, library: Library) -> Sample:
    request = library.request(found.ours.config, found.ours.variant)
    return next(each for each in request.experiment.sample if each.name == found.ours.setting)


def _tokens(ours: Sequence[Found], library: Library) -> list[Seen]:
    """Of each configuration the training run and the rounds of distillation; those of as many tokens together."""
    told: dict[tuple[int, float | None], tuple[Seen, list[str]]] = {}
    for config, variant in dict.fromkeys((each.ours.config, each.ours.variant) for each in ours):
        request = library.request(config, variant)
        machine = replace(this_machine(), disk=known_disk(request.store.root))
        found = tokens_seen(
            request.experiment, request.plan, lambda each, r=request: r.store.find(*each.place), machine
        )
        for seen in found:
            name = variant or config
            name = name if seen.step == "train" else f"{name} {seen.step}"
            told.setdefault((seen.rows, seen.documents), (seen, []))[1].append(name)
    return [replace(seen, step=", ".join(names)) for seen, names in told.values()]


def _plain(
    table: Table,
    groups: Sequence[tuple[str, Sequence[Filled]]],
    needs: Sequence[Need],
    told: Sequence[tuple[str, str]],
    library: Library,
) -> dict[str, Any]:
    names = [score.name for score in table.scores]
    ours = [row.found for _, rows in groups for row in rows if row.found is not None]
    first = ours[0]
    experiment = library.request(first.ours.config, first.ours.variant).experiment
    return {
        "table": table.name,
        "about": table.about,
        "rows": [
            {
                "group": title or None,
                "label": row.label,
                "ours": None if row.found is None else _plain_found(row.found, names),
                "published": {
                    name: _plain_figure(each) for name, each in zip(names, row.published, strict=False)
                },
            }
            for title, rows in groups
            for row in rows
        ],
        "needs": [need.plain() for need in needs],
        "cost": _ledger(ours).plain() if any(each.artifact for each in ours) else None,
        "judge_as_published": same_judge(table, experiment),
        "differences": dict(told),
    }


def _plain_figure(figure: Figure | None) -> dict[str, float | None] | None:
    return None if figure is None else {"value": figure.value, "error": figure.error}


def _plain_found(found: Found, names: Sequence[str]) -> dict[str, Any]:
    plain: dict[str, Any] = {
        **asdict(found.ours),
        "variant": found.ours.variant or None,
        "step": found.step,
        "key": found.key,
        "there": found.metrics is not None,
    }
    if found.metrics is None:
        return plain
    metrics, kept = found.metrics, ("value", "se_seed", "se_item", "interval")
    scores = {name: metrics["scores"].get(name) or {} for name in names}
    return plain | {
        "scores": {name: {each: score.get(each) for each in kept} for name, score in scores.items()},
        "texts": metrics["counts"]["texts"],
        "seeds": metrics["counts"]["seeds"],
        "degenerate": list(metrics["degenerate"]),
    }
