"""``elf cache …``: what the store holds, what of it is kept, and whether it is right.

Each command imports what it needs when it runs.
"""

from typing import Annotated

import typer

from elf.flows.failing import telling
from elf.flows.options import AsJson, Debug, StorePath

cache = typer.Typer(
    help="Look into the store, keep it small, check what it holds.",
    epilog="KEY is the start of a key, STAGE/START, or a step of a run: tiny/encode.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Key = Annotated[
    str, typer.Argument(metavar="KEY", help="Start of a key, STAGE/START, or a step of a run: tiny/encode.")
]
Seed = Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Which rows are drawn.")]
Grace = Annotated[
    str, typer.Option("--grace", metavar="TIME", help="Keep what was used so lately: 7d, 12h, 30m, 0.")
]
Runs = Annotated[
    list[str] | None,
    typer.Option("--runs", metavar="PATH", help="Another folder of runs whose artifacts stay; repeatable."),
]


@cache.command()
def ls(
    stage: Annotated[str | None, typer.Argument(metavar="STAGE", help="Default: all stages.")] = None,
    store: StorePath = None,
    json: AsJson = False,
    debug: Debug = False,
) -> None:
    """List artifacts: rows, bytes, last use, what keeps them."""
    with telling(debug=debug):
        from elf.flows.cache_looking import list_artifacts

        list_artifacts(stage, store, as_json=json)


@cache.command()
def du(grace: Grace = "7d", store: StorePath = None, json: AsJson = False, debug: Debug = False) -> None:
    """Say where the bytes are, and what gc would free."""
    with telling(debug=debug):
        from elf.flows.cache_looking import show_usage

        show_usage(grace, store, as_json=json)


@cache.command()
def show(key: Key, store: StorePath = None, json: AsJson = False, debug: Debug = False) -> None:
    """Show one artifact: settings, inputs, facts, files."""
    with telling(debug=debug):
        from elf.flows.cache_looking import show_artifact

        show_artifact(key, store, as_json=json)


@cache.command()
def pin(
    key: Key,
    note: Annotated[str, typer.Option("--note", metavar="TEXT", help="Why it is kept.")] = "",
    store: StorePath = None,
    debug: Debug = False,
) -> None:
    """Keep an artifact and what it was made from."""
    with telling(debug=debug):
        from elf.flows.cache_keeping import pin_artifact

        pin_artifact(key, note, store)


@cache.command()
def unpin(key: Key, store: StorePath = None, debug: Debug = False) -> None:
    """Take a pin away."""
    with telling(debug=debug):
        from elf.flows.cache_keeping import unpin_artifact

        unpin_artifact(key, store)


@cache.command()
def gc(
    delete: Annotated[bool, typer.Option("--delete", help="Remove it; without this, only say so.")] = False,
    grace: Grace = "7d",
    runs: Runs = None,
    forget: Annotated[
        list[str] | None,
        typer.Option("--forget", metavar="PATH", help="A folder of runs that is gone for good; repeatable."),
    ] = None,
    store: StorePath = None,
    json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Remove what no pin, no run and no recent use reaches."""
    with telling(debug=debug):
        from elf.flows.cache_keeping import collect

        collect(store, delete=delete, grace=grace, runs=runs or (), forgotten=forget or (), as_json=json)


@cache.command()
def verify(
    keys: Annotated[
        list[str] | None, typer.Argument(metavar="KEY", help="Which artifacts; default: all.")
    ] = None,
    sample: Annotated[
        int | None,
        typer.Option("--sample", metavar="N", min=1, help="N random rows of each embedding store, not all."),
    ] = None,
    seed: Seed = 0,
    store: StorePath = None,
    json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Compare artifacts with what was recorded of them."""
    with telling(debug=debug):
        from elf.flows.cache_checking import verify_artifacts

        verify_artifacts(keys or (), store, sample=sample, seed=seed, as_json=json)


@cache.command()
def audit(
    key: Key,
    rows: Annotated[int, typer.Option("--rows", metavar="N", min=1, help="Rows of each view.")] = 32,
    seed: Seed = 0,
    store: StorePath = None,
    json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Encode random rows again and compare with the stored."""
    with telling(debug=debug):
        from elf.flows.cache_checking import audit_artifact

        audit_artifact(key, store, rows=rows, seed=seed, as_json=json)


@cache.command()
def stats(key: Key, store: StorePath = None, json: AsJson = False, debug: Debug = False) -> None:
    """Mean and deviation of stored states, by channel too."""
    with telling(debug=debug):
        from elf.flows.cache_checking import show_statistics

        show_statistics(key, store, as_json=json)
