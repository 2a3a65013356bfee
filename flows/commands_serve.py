"""``elf up`` and ``elf down``: everything that deployments need, brought up by one command and ended by another."""

import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from elf.flows.deployments import (
    POOL,
    deploy,
    folder_of,
    make_pool,
    read_deployments,
    watch_for_dead_runs,
    workers_heard,
)
from elf.flows.prefect_api import LOOPBACK, PrefectApi
from elf.flows.service_address import page_of
from elf.flows.service_choice import choose_server, refuse_another
from elf.flows.service_folder import Record, Server, ServiceFolder, Worker, shell_address
from elf.flows.service_stopping import flow_processes, settle_dead_runs, stop_server, stop_worker
from elf.flows.services import (
    AUTHORITY,
    PortTaken,
    database_of,
    start_server,
    start_worker,
    wait_for_server,
    wait_for_worker,
    worker_name,
)
from elf.flows.terminal import make_console
from elf.pipeline.errors import Failed
from elf.pipeline.wording import count_of


def bring_up(*, host: str | None, port: int | None, database: str | None) -> None:
    """Start what is missing, leave what is there. Raises Failed, and then nothing runs that did not before."""
    folder = ServiceFolder.here()
    said = Said(make_console())
    with folder.locked(said.waits), _undone_on_failure(folder) as now:
        server = _server_up(now, host, port, database, said)
        api = PrefectApi(server.api)
        _refuse_strangers(api, folder)
        said.line(make_pool(api), "pool", f"{POOL}, for processes")
        count, new = deploy(api, folder.home)
        said.line(new > 0, "deployments", f"{count}, one for each shipped configuration and ablation")
        said.line(watch_for_dead_runs(api), "automation", "a flow run without heartbeats becomes Crashed")
        _worker_up(now, server, said)
        pointed = folder.point_to(server.api)
    said.how_to_go_on(server, pointed=pointed)


def bring_down() -> None:
    """End the worker with its flow runs, then the server if it is ours."""
    folder = ServiceFolder.here()
    said = Said(make_console())
    if not folder.path.is_dir():
        said.nothing()
        return
    with folder.locked(said.waits):
        record = folder.read()
        server, worker = _alive(record)
        runs = flow_processes(folder)
        if server is None and worker is None and not runs:
            said.nothing()
        ended = stop_worker(folder, worker, server)
        if worker is not None or runs:
            said.ended("worker", f"and {count_of(ended, 'flow run')}" if ended else "no flow run was at work")
        folder.write(replace(record, worker=None))
        if server is not None and server.process is not None:
            stop_server(server)
            said.ended("server", page_of(server.api))
        elif server is not None:
            said.left("server", f"{page_of(server.api)}: `elf up` did not start it")
        folder.point_nowhere()
        folder.write(Record())


class Said:
    """What the two commands tell: one line for each thing, whether it was there or is new."""

    def __init__(self, out: Console) -> None:
        self.out = out

    def line(self, new: bool, subject: str, words: str) -> None:
        self._line("[bold]started[/]" if new else "[green]there  [/]", subject, words)

    def begins(self, subject: str, log: Path) -> None:
        """What takes a while: on a busy machine a minute and more."""
        self._line("[cyan]begins [/]", subject, f"what it says: {log}")

    def ended(self, subject: str, words: str) -> None:
        self._line("[bold]ended  [/]", subject, words)

    def left(self, subject: str, words: str) -> None:
        self._line("[yellow]left   [/]", subject, words)

    def waits(self) -> None:
        self.out.print("Another `elf up` or `elf down` works here; waiting for it.", highlight=False)

    def nothing(self) -> None:
        self.out.print("Nothing was up in this folder.", highlight=False)

    def how_to_go_on(self, server: Server, *, pointed: bool) -> None:
        """The next command, and what a shell must be told if it is to find the server."""
        export = f"export PREFECT_API_URL={server.api}"
        shell = shell_address()
        self.out.print()
        if shell not in (None, server.api):
            self._plain(f"This shell's PREFECT_API_URL names another server; first: {export}")
        elif not pointed:
            self._plain(f"The prefect.toml here is yours and stays as it is; first: {export}")
        self._plain(f"Run here:     {_prefect_command()} deployment run elf/tiny --watch")
        self._plain(f"Elsewhere:    {export}")
        self._plain(f"Look at:      {page_of(server.api)}, `elf status`")
        host = server.address.host if server.address is not None else LOOPBACK[0]
        if host not in LOOPBACK and AUTHORITY not in os.environ:
            self.out.print(
                f"Whoever reaches {host} can run flows as you; {AUTHORITY}=USER:PASSWORD shuts others out.",
                style="yellow",
                highlight=False,
            )

    def _line(self, word: str, subject: str, words: str) -> None:
        self.out.print(f"{word}  {subject:<12} {words}", highlight=False, soft_wrap=True)

    def _plain(self, words: str) -> None:
        self.out.print(words, highlight=False, markup=False, soft_wrap=True)


class _Now:
    """The record while it changes: what runs, and what this call started."""

    def __init__(self, folder: ServiceFolder) -> None:
        self.folder = folder
        self.before = folder.read()
        self.record = self.before

    def started(self, *, server: Server | None = None, worker: Worker | None = None) -> None:
        """Write down at once what was just started, so that nothing can run unrecorded."""
        self.record = replace(
            self.record, server=server or self.record.server, worker=worker or self.record.worker
        )
        self.folder.write(self.record)

    def undo(self) -> None:
        """End what this call started."""
        if self.record.worker is not None and self.record.worker != self.before.worker:
            stop_worker(self.folder, self.record.worker, self.record.server)
        if self.record.server is not None and self.record.server != self.before.server:
            stop_server(self.record.server)
        self.folder.write(self.before)


@contextmanager
def _undone_on_failure(folder: ServiceFolder) -> Iterator[_Now]:
    now = _Now(folder)
    try:
        yield now
    except BaseException:
        now.undo()
        raise


def _server_up(now: _Now, host: str | None, port: int | None, database: str | None, said: Said) -> Server:
    there, _ = _alive(now.record)
    if there is not None and there.process is not None:
        refuse_another(there, host, port, database_of(database))
        if not PrefectApi(there.api).answers():
            raise Failed(
                f"The Prefect server of this folder runs but does not answer at {there.api}. Its log is "
                f"{now.folder.server_log}; `elf down` ends it."
            )
        said.line(False, "server", f"{page_of(there.api)}, {there.database}")
        return there
    chosen = choose_server(now.record, host, port)
    if isinstance(chosen, Server):
        now.started(server=chosen)
        said.line(False, "server", f"{page_of(chosen.api)}, not started by `elf up`")
        return chosen
    for address in chosen:
        server = start_server(now.folder, address, database)
        now.started(server=server)
        said.begins("server", now.folder.server_log)
        try:
            wait_for_server(now.folder, server)
        except PortTaken:
            if port is not None:
                raise
            continue  # somebody was quicker; the next port
        said.line(True, "server", f"{page_of(server.api)}, {server.database}")
        return server
    raise Failed("No port is free for a server; name one: `elf up --port N`.")


def _worker_up(now: _Now, server: Server, said: Said) -> None:
    _, there = _alive(now.record)
    store = os.environ.get("ELF_STORE")
    if there is not None and there.api == server.api:
        if there.store != store:
            raise Failed(
                f"ELF_STORE is {store or 'unset'} here, but this folder's worker runs with "
                f"{there.store or 'none (./store)'}; `elf down` first."
            )
        said.line(False, "worker", f"process {there.process.pid}")
        return
    if there is not None:
        stop_worker(now.folder, there, server)
    else:
        settle_dead_runs(PrefectApi(server.api), now.folder)
    began = datetime.now(UTC)
    worker = start_worker(now.folder, server.api)
    now.started(worker=worker)
    said.begins("worker", now.folder.worker_log)
    wait_for_worker(now.folder, worker, began)
    said.line(True, "worker", f"process {worker.process.pid}")


def _refuse_strangers(api: PrefectApi, folder: ServiceFolder) -> None:
    """Raise Failed if these deployments serve another folder, whose runs would then work in this one."""
    theirs = {folder_of(each) for each in read_deployments(api)} - {str(folder.home), None}
    others = [name for name in workers_heard(api) if name != worker_name(folder)]
    if theirs and others:
        raise Failed(
            f"The deployments at {page_of(api.url)} work in {', '.join(sorted(map(str, theirs)))}, and "
            f"{count_of(len(others), 'worker')} there waits for them ({', '.join(sorted(others))}). Take a server of "
            "this folder's own: unset PREFECT_API_URL and leave --port out; or `elf down` over there first."
        )


def _alive(record: Record) -> tuple[Server | None, Worker | None]:
    """What of a record still runs; a server of somebody else's counts."""
    server, worker = record.server, record.worker
    if server is not None and server.process is not None and not server.process.is_alive():
        server = None
    if worker is not None and not worker.process.is_alive():
        worker = None
    return server, worker


def _prefect_command() -> str:
    """``prefect``, or where it lies if that is not the one this shell would find."""
    ours = Path(sys.executable).parent / "prefect"
    found = shutil.which("prefect")
    if found is not None and Path(found).exists() and ours.exists() and Path(found).samefile(ours):
        return "prefect"
    here = Path.cwd()
    return shlex.quote(str(ours.relative_to(here) if ours.is_relative_to(here) else ours))
