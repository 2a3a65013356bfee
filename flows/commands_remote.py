"""``elf cache push`` and ``elf cache pull``. Each imports what it needs when it runs."""

from typing import Annotated

import typer

from elf.flows.failing import telling
from elf.flows.options import Debug, StorePath


def push(
    keys: Annotated[
        list[str],
        typer.Argument(
            metavar="KEY|RUN",
            help="Start of a key, STAGE/START, a step of a run (tiny/encode), or a run: all its steps.",
        ),
    ],
    with_inputs: Annotated[
        bool, typer.Option("--with-inputs", help="Send what they were made from, too.")
    ] = False,
    store: StorePath = None,
    debug: Debug = False,
) -> None:
    """Send artifacts to the remote, $ELF_REMOTE."""
    with telling(debug=debug):
        from elf.flows.cache_sharing import push_artifacts

        push_artifacts(keys, store, with_inputs=with_inputs)


def pull(
    keys: Annotated[
        list[str],
        typer.Argument(metavar="KEY", help="Start of a key that the remote holds, or STAGE/START."),
    ],
    with_inputs: Annotated[
        bool, typer.Option("--with-inputs", help="Fetch what they were made from, too.")
    ] = False,
    store: StorePath = None,
    debug: Debug = False,
) -> None:
    """Fetch artifacts from the remote, $ELF_REMOTE."""
    with telling(debug=debug):
        from elf.flows.cache_sharing import pull_artifacts

        pull_artifacts(keys, store, with_inputs=with_inputs)
