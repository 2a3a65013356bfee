"""Starts what a project folder runs: a Prefect server, and a worker for its flow runs.

Both are told everything by their environment: addresses, files, no telemetry, a worker that looks for work every
second, heartbeats for flow runs. The database's URL goes to the server alone, never to the worker or a file.
"""

import hashlib
import os
import re
import socket
import sys
import time
from datetime import datetime
from pathlib import Path

from elf.cache.files import make_folder
from elf.cache.redaction import redact
from elf.flows.background import launch
from elf.flows.deployments import HEARTBEAT, POOL, workers_heard
from elf.flows.prefect_api import LOOPBACK, PrefectApi
from elf.flows.service_address import Address, database_text
from elf.flows.service_folder import Server, ServiceFolder, Worker
from elf.pipeline.errors import Failed

PATIENCE = 600.0
"""Seconds a server or worker may take to come up: on a busy machine Prefect takes minutes."""
DATABASE = "PREFECT_SERVER_DATABASE_CONNECTION_URL"
AUTHORITY = "PREFECT_SERVER_API_AUTH_STRING"
_QUIET = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_EPHEMERAL_ENABLED": "false",
    "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
}
_WORKER = {
    "PREFECT_WORKER_QUERY_SECONDS": "1",
    "PREFECT_WORKER_HEARTBEAT_SECONDS": "10",
    "PREFECT_WORKER_CANCELLATION_POLL_SECONDS": "10",
    "PREFECT_WORKER_ENABLE_CANCELLATION": "true",
    "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": str(HEARTBEAT),
}
_TELLING = re.compile(r"(?:Error|Exception)\b.*: ")
_OF_SERVER = ("PREFECT_SERVER_DATABASE_", "PREFECT_API_DATABASE_", "PREFECT_SERVER_API_")


class PortTaken(Failed):
    """Somebody else listens where the server was to listen."""


def start_server(folder: ServiceFolder, address: Address, database: str | None) -> Server:
    """Start a server. Returns at once: `wait_for_server` tells whether it came up.

    ``database`` is a URL; None: the one of the environment, or a SQLite file in the folder.
    """
    own = make_folder(folder.path / "prefect") / "prefect.db"
    url = database or os.environ.get(DATABASE) or f"sqlite+aiosqlite:///{own}"
    told = database_of(database) or f"SQLite {own.relative_to(folder.home)}"
    environment = _base(folder) | {DATABASE: url, "PREFECT_SERVER_UI_API_URL": _ui_address(address)}
    command = ["server", "start", "--host", address.host, "--port", str(address.port)]
    process = launch(_prefect(command), folder=folder.home, environment=environment, log=folder.server_log)
    return Server(address.api, told, address, process)


def database_of(database: str | None) -> str | None:
    """The words for the database that is asked for, by option or environment; None if none is."""
    url = database or os.environ.get(DATABASE)
    return database_text(url) if url else None


def wait_for_server(folder: ServiceFolder, server: Server) -> None:
    """Until the server answers. Raises Failed if it ends instead, PortTaken if another has its port."""
    api, process, address = PrefectApi(server.api), server.process, server.address
    assert process is not None
    assert address is not None
    deadline = time.monotonic() + PATIENCE
    while process.is_alive():
        if process.listens_on(address.port) and api.answers(
            patience=10
        ):  # what answers may be somebody else's
            return
        if time.monotonic() > deadline:
            words = _last_words(folder.server_log)
            raise Failed(
                f"The Prefect server did not answer at {server.api} within {PATIENCE:g} s{words}. "
                f"Its log is {folder.server_log}; `elf down` ends it."
            )
        time.sleep(0.2)
    words = _last_words(folder.server_log)
    raise (Failed if address.is_free() else PortTaken)(
        f"The Prefect server did not come up{words}. Read its log, {folder.server_log}, then call `elf up` again."
    )


def start_worker(folder: ServiceFolder, api: str) -> Worker:
    """Start a worker. Returns at once: `wait_for_worker` tells whether it came up."""
    name = worker_name(folder)
    environment = _WORKER | _base(folder) | {"PREFECT_API_URL": api, "ELF_HOME": str(folder.home)}
    for variable in [each for each in environment if each.startswith(_OF_SERVER)]:
        del environment[variable]
    command = ["worker", "start", "--pool", POOL, "--type", "process", "--name", name]
    process = launch(_prefect(command), folder=folder.home, environment=environment, log=folder.worker_log)
    return Worker(api, name, os.environ.get("ELF_STORE"), process)


def wait_for_worker(folder: ServiceFolder, worker: Worker, began: datetime) -> None:
    """Until the server has heard from the worker since ``began``. Raises Failed if it ends instead."""
    api = PrefectApi(worker.api)
    deadline = time.monotonic() + PATIENCE
    while worker.process.is_alive() and time.monotonic() < deadline:
        if worker.name in workers_heard(api, since=began):
            return
        time.sleep(0.2)
    raise Failed(
        f"The worker did not come up{_last_words(folder.worker_log)}. Read its log, {folder.worker_log}, then call "
        "`elf up` again."
    )


def worker_name(folder: ServiceFolder) -> str:
    """One name per machine and folder, so that a worker that comes back is the same one."""
    digest = hashlib.sha256(str(folder.home).encode()).hexdigest()
    return f"{socket.gethostname()}-{digest[:8]}"


def _prefect(arguments: list[str]) -> list[str]:
    return [sys.executable, "-P", "-m", "prefect", *arguments]


def _base(folder: ServiceFolder) -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PREFECT_API_URL", "PREFECT_PROFILE")
    }
    return kept | _QUIET | {"PREFECT_HOME": str(folder.path / "prefect"), "PYTHONUNBUFFERED": "1"}


def _ui_address(address: Address) -> str:
    """Beyond the loopback the UI asks whatever host its page came from."""
    return address.api if address.host in LOOPBACK else "/api"


def _last_words(log: Path) -> str:
    """The last line of a log that tells of an error, or the last at all, as a clause."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines()[-60:] if line.strip()]
    telling = [line for line in lines if _TELLING.search(line)] or lines
    return f"; its last words: {redact(telling[-1])[:300]}" if telling else ""
