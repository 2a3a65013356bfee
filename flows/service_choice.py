"""Which Prefect server ``elf up`` uses: one that answers where it is told to look, else one of its own."""

from collections.abc import Iterator

from elf.flows.prefect_api import PrefectApi, Unreachable
from elf.flows.service_address import HOST, PORTS, Address, address_in, page_of
from elf.flows.service_folder import Record, Server, shell_address
from elf.pipeline.errors import Failed

FOREIGN = "its own"
"""What is known of the database of a server that somebody else started."""


def choose_server(before: Record, host: str | None, port: int | None) -> Server | Iterator[Address]:
    """A server that answers already, else free addresses to start one at, best first.

    Told by ``--port``, by ``PREFECT_API_URL`` or by the last `elf up` here; told nothing: the first free port from
    4200. Raises Failed if the one place told can be neither used nor taken.
    """
    told = (
        Address(host or HOST, port) if port is not None else None if host is not None else _remembered(before)
    )
    if told is None:
        return _free(before, host or HOST)
    api = told if isinstance(told, str) else told.api
    if PrefectApi(api).answers(patience=5):
        return Server(api, FOREIGN)
    if isinstance(told, str):
        raise Unreachable(
            f"No Prefect server answers at {api}. Start it, or have a server started here: `elf down`, then "
            "`unset PREFECT_API_URL` and `elf up`."
        )
    if not told.is_free():
        raise Failed(
            f"Port {told.port} of {told.host} is taken by something that is no Prefect server; name another: "
            f"`elf up --port {told.port + 1}`, or leave --port out (and PREFECT_API_URL unset) for the first free one."
        )
    return iter([told])


def _remembered(before: Record) -> Address | str | None:
    """What the shell names, or else a server of somebody else's that was used before."""
    api = shell_address()
    if api is None and before.server is not None and before.server.process is None:
        api = before.server.api
    return None if api is None else address_in(api) or api


def _free(before: Record, host: str) -> Iterator[Address]:
    """Free addresses; where our last server was comes first, for a worker may still look for it there."""
    last = before.server.address if before.server is not None else None
    ports = ([last.port] if last is not None else []) + list(PORTS)
    return (address for port in ports if (address := Address(host, port)).is_free())


def refuse_another(there: Server, host: str | None, port: int | None, database: str | None) -> None:
    """Raise Failed if our server that is up is not the one asked for: address and database stay what they are."""
    address = there.address
    assert address is not None
    differs = [
        f"--port {port}" if port not in (None, address.port) else "",
        f"--host {host}" if host not in (None, address.host) else "",
        "another database" if database is not None and database != there.database else "",
    ]
    asked = " and ".join(each for each in differs if each)
    if asked:
        raise Failed(
            f"`elf up` asks for {asked}, but this folder's server is up at {page_of(there.api)} with "
            f"{there.database}; `elf down` first."
        )
