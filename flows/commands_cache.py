"""``elf cache …``: what the store holds, what of it is kept, and whether it is right."""

import typer

cache = typer.Typer(
    help="Look into the store, keep it small, check what it holds.",
    epilog="KEY is the start of a key, STAGE/START, or a step of a run: tiny/encode.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
