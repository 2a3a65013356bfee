"""Options that several commands share."""

from typing import Annotated

import typer

Config = Annotated[str, typer.Argument(metavar="CONFIG", help="A YAML file, or the name of a shipped one.")]
Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="K=V", help="Override a setting; any number of them.")
]
StorePath = Annotated[
    str | None, typer.Option("--store", metavar="PATH", help="Default: $ELF_STORE, else ./store.")
]
Debug = Annotated[bool, typer.Option("--debug", envvar="ELF_DEBUG", help="Show tracebacks.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
