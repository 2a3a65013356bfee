"""What runs for a project folder: ``.elf/`` with the record of it, logs, Prefect's own files, and one lock.

    .elf/services.json    addresses, process ids, start times; never a password
    .elf/server.log       what the server printed; worker.log likewise
    .elf/prefect/         PREFECT_HOME of server and worker, with the SQLite database
    prefect.toml          beside .elf: the server's address, for every `prefect` command in the folder

Folders of their own let two projects of one machine have servers of their own.
"""

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter

from elf.cache.files import make_folder, write_atomic, writing
from elf.flows.background import Background
from elf.flows.service_address import Address
from elf.pipeline.errors import Failed

MARK = "# Written by `elf up`, removed by `elf down`.\n"


@dataclass(frozen=True, slots=True)
class Server:
    """A server in use. Without ``address`` and ``process`` somebody else started it: it is not ours to stop."""

    api: str
    database: str
    address: Address | None = None
    process: Background | None = None


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker of ours, the server it asks for work and the store its flow runs use, if it names one."""

    api: str
    name: str
    store: str | None
    process: Background


@dataclass(frozen=True, slots=True)
class Record:
    """What ``elf up`` left running."""

    server: Server | None = None
    worker: Worker | None = None


@dataclass(frozen=True, slots=True)
class ServiceFolder:
    """The services of the project folder ``home``, an absolute path."""

    home: Path

    @classmethod
    def here(cls) -> "ServiceFolder":
        return cls(Path.cwd().resolve())

    @property
    def path(self) -> Path:
        return self.home / ".elf"

    @property
    def record(self) -> Path:
        return self.path / "services.json"

    @property
    def server_log(self) -> Path:
        return self.path / "server.log"

    @property
    def worker_log(self) -> Path:
        return self.path / "worker.log"

    @property
    def settings(self) -> Path:
        return self.home / "prefect.toml"

    @contextmanager
    def locked(self, on_wait: Callable[[], None]) -> Iterator[None]:
        """Keep every other ``elf up`` and ``elf down`` of this folder out; ``on_wait`` is called before waiting."""
        make_folder(self.path)
        self.path.chmod(0o700)
        if not (self.path / ".gitignore").exists():
            write_atomic(self.path / ".gitignore", "*\n")
        with writing(self.path), (self.path / "lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                on_wait()
                fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def read(self) -> Record:
        """The record; an empty one if there is none. Raises Failed if it is damaged."""
        try:
            return TypeAdapter(Record).validate_json(self.record.read_bytes(), strict=True)
        except FileNotFoundError:
            return Record()
        except ValueError as error:
            raise Failed(
                f"{self.record} is damaged ({error}). End the server and the worker by "
                "their ids (`ps -ef | grep prefect` shows them), delete the file, then call `elf up` again."
            ) from error

    def write(self, record: Record) -> None:
        if record == Record():
            self.record.unlink(missing_ok=True)
        else:
            write_atomic(self.record, json.dumps(asdict(record), indent=1) + "\n")

    def point_to(self, api: str) -> bool:
        """Have `prefect` commands in the folder use ``api``; False if a ``prefect.toml`` of yours stands there."""
        if not self._settings_are_ours():
            return False
        write_atomic(self.settings, f"{MARK}[api]\nurl = {json.dumps(api)}\n")
        return True

    def point_nowhere(self) -> None:
        if self.settings.exists() and self._settings_are_ours():
            self.settings.unlink()

    def _settings_are_ours(self) -> bool:
        try:
            return self.settings.read_text(encoding="utf-8", errors="replace").startswith(MARK)
        except FileNotFoundError:
            return True


def shell_address() -> str | None:
    """The server that this shell names by ``PREFECT_API_URL``, if any."""
    return (os.environ.get("PREFECT_API_URL") or "").rstrip("/") or None
