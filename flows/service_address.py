"""Where the Prefect server is, or is to be: hosts, ports, databases, and how they are told without passwords."""

import errno
import re
import socket
from dataclasses import dataclass
from urllib.parse import urlsplit

from elf.flows.prefect_api import LOOPBACK
from elf.pipeline.errors import Failed, Misconfigured

HOST = "127.0.0.1"
PORTS = range(4200, 4300)
"""The first is Prefect's own default."""
_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}
_DRIVERS = {"postgresql+asyncpg": "PostgreSQL", "sqlite+aiosqlite": "SQLite"}
_PLACE = re.compile(r"(?:[^@/?#]*@)?([\w.-]+(?::\d+)?)/([\w-]+)(?:\?[^@]*)?")


@dataclass(frozen=True, slots=True)
class Address:
    """A host to listen on, and a port; ``api`` is where this machine reaches it."""

    host: str
    port: int

    @property
    def api(self) -> str:
        host = _ANY.get(self.host, self.host)
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}/api"

    def is_free(self) -> bool:
        """Whether we could listen there now. Raises Misconfigured if the host is none of this machine's."""
        try:
            family, kind, protocol, _, place = socket.getaddrinfo(
                self.host, self.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
        except socket.gaierror as error:
            raise Misconfigured(
                f"--host {self.host}: no such host ({error.strerror}). {HOST} is the default."
            ) from None
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(place)
            except PermissionError:
                raise Failed(f"Port {self.port} may not be used by you; choose one above 1023.") from None
            except OSError as error:
                if error.errno == errno.EADDRNOTAVAIL:
                    raise Misconfigured(
                        f"--host {self.host} is no address of this machine; name one that is, or leave it out."
                    ) from None
                return False
        return True


def address_in(api: str) -> Address | None:
    """The address in an API URL if a server of ours could answer there: plain HTTP, this machine, ``/api``."""
    parts = urlsplit(api)
    try:
        port = parts.port
    except ValueError:
        return None
    if parts.scheme != "http" or parts.hostname not in LOOPBACK or parts.path != "/api" or port is None:
        return None
    return Address(parts.hostname, port)


def page_of(api: str) -> str:
    """The address of the UI that goes with an API address."""
    return api.removesuffix("/api")


def database_text(url: str) -> str:
    """A database for people: kind, name and host, never user or password. Raises Misconfigured if unusable."""
    scheme, split, rest = url.partition("://")
    if scheme not in _DRIVERS or not split:
        raise Misconfigured(
            f"A database URL must begin with {' or '.join(f'{each}://' for each in _DRIVERS)}; the one given by "
            "--database or PREFECT_SERVER_DATABASE_CONNECTION_URL does not."
        )
    kind = _DRIVERS[scheme]
    if kind == "SQLite":
        return f"{kind} {rest.partition('?')[0].removeprefix('/')}"
    found = _PLACE.fullmatch(rest)  # what does not look as it should is not told at all
    return f"{kind} {found[2]} on {found[1]}" if found is not None else kind
