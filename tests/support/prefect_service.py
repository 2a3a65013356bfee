"""A Prefect server of the tests' own with the deployments that are shipped, and a worker; both can be killed."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
BIN = Path(sys.executable).parent
PATIENCE = 240
DEPLOY = """
import sys
from pathlib import Path
from elf.flows.deployments import deploy, make_pool
from elf.flows.prefect_api import PrefectApi
api = PrefectApi(sys.argv[1])
make_pool(api)
deploy(api, Path(sys.argv[2]))
"""


class Service:
    """A server on a free port of the loopback, its pool and deployments, a worker, and what leads to them.

    ``home`` holds Prefect's files and the logs, ``work`` is the folder in which flow runs work. ``settings``
    are more environment variables for the server, the worker and every command.
    """

    def __init__(self, home: Path, settings: dict[str, str] | None = None) -> None:
        self.home, self.work = home, home / "work"
        self.work.mkdir(parents=True)
        self.port = free_port()
        self.api = f"http://127.0.0.1:{self.port}/api"
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "ELF_"))
        }
        self.environment = kept | {
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "PREFECT_HOME": str(home / "prefect"),
            "PREFECT_API_URL": self.api,
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "PREFECT_SERVER_EPHEMERAL_ENABLED": "false",
            "DO_NOT_TRACK": "1",
            "OMP_NUM_THREADS": "1",
            "ELF_HOME": str(self.work),
            **(settings or {}),
        }
        self.server: subprocess.Popen[bytes] | None = None
        self.worker: subprocess.Popen[bytes] | None = None

    @property
    def server_log(self) -> Path:
        return self.home / "server.log"

    @property
    def worker_log(self) -> Path:
        return self.home / "worker.log"

    def start_server(self) -> None:
        """Start the server (again, on the same port and database) and wait until it answers."""
        assert self.server is None
        arguments = ["server", "start", "--host", "127.0.0.1", "--port", str(self.port)]
        self.server = self._start(arguments, self.server_log)
        wait_until(
            self.answers, PATIENCE, lambda: f"the server did not come up:\n{self.server_log.read_text()}"
        )

    def start_worker(self) -> None:
        """Start a worker (again) and wait until the server knows that it is there."""
        assert self.worker is None
        began = datetime.now(UTC)
        self.worker = self._start(["worker", "start", "--pool", "elf", "--name", "tests"], self.worker_log)
        wait_until(
            lambda: self.has_worker(since=began),
            120,
            lambda: f"no worker came up:\n{self.worker_log.read_text()}",
        )

    def stop_server(self) -> None:
        if self.server is not None:
            stop(self.server)
            self.server = None

    def stop_worker(self) -> None:
        if self.worker is not None:
            stop(self.worker)
            self.worker = None

    def deploy(self) -> None:
        """Make the pool and the deployments as ``elf up`` does."""
        words = [sys.executable, "-c", DEPLOY, self.api, str(self.work)]
        deployed = subprocess.run(words, env=self.environment, capture_output=True, text=True, check=False)
        assert deployed.returncode == 0, deployed.stdout + deployed.stderr

    def answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.api}/health", timeout=2):
                return True
        except OSError:
            return False

    def has_worker(self, *, since: datetime) -> bool:
        """Whether a worker of the pool said that it lives later than ``since``."""
        workers = self.ask("work_pools/elf/workers/filter", {})
        return any(datetime.fromisoformat(each["last_heartbeat_time"]) > since for each in workers)

    def prefect(self, *arguments: str, patience: float = PATIENCE) -> subprocess.CompletedProcess[str]:
        """Run a ``prefect`` command to its end."""
        return subprocess.run(
            [str(BIN / "prefect"), *arguments],
            cwd=ROOT,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=patience,
            check=False,
        )

    def ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """POST ``body`` as JSON (GET without one) and return the JSON of the answer."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.api}/{path}", data, {"Content-Type": "application/json"})
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                    text = answer.read()
                return json.loads(text) if text else None
            except urllib.error.HTTPError as error:
                if error.code != 503 or time.monotonic() > deadline:  # 503: its database is busy for a moment
                    raise
                error.close()
                time.sleep(0.5)

    def submit(self, deployment: str = "tiny", **parameters: Any) -> str:
        """Create a flow run of a deployment for at once; its id."""
        found = self.ask("deployments/filter", {"deployments": {"name": {"any_": [deployment]}}})[0]
        body = {"parameters": {**found["parameters"], **parameters}, "state": {"type": "SCHEDULED"}}
        return self.ask(f"deployments/{found['id']}/create_flow_run", body)["id"]

    def flow_run(self, run: str) -> dict[str, Any]:
        return self.ask(f"flow_runs/{run}")

    def task_states(self, run: str) -> dict[str, str]:
        """State names of the tasks of a flow run, by task."""
        tasks = self.ask("task_runs/filter", {"flow_runs": {"id": {"any_": [run]}}})
        return {task["name"]: task["state_name"] for task in tasks}

    def run_tiny(self, *parameters: str) -> tuple[dict[str, Any], dict[str, str]]:
        """Run the deployment to its end as people do; the flow run, and the state name of each of its tasks."""
        done = self.prefect("deployment", "run", "elf/tiny", "--watch", *parameters)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{self.worker_log.read_text()}"
        flow_run = self.ask("flow_runs/filter", {"sort": "EXPECTED_START_TIME_DESC", "limit": 1})[0]
        return flow_run, self.task_states(flow_run["id"])

    def _start(self, arguments: list[str], log: Path) -> subprocess.Popen[bytes]:
        # A test run that a script started in the background ignores SIGINT; a worker that inherited it is deaf.
        heedful = ["env", "--default-signal=INT", str(BIN / "prefect")]
        with log.open("ab") as output:
            return subprocess.Popen(
                [*heedful, *arguments],
                cwd=self.home,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )


@contextmanager
def serving(home: Path, settings: dict[str, str] | None = None) -> Iterator[Service]:
    """A server with everything deployed and a worker, for the time of the block."""
    service = Service(home, settings)
    try:
        service.start_server()
        service.deploy()
        service.start_worker()
        yield service
    finally:
        service.stop_worker()
        service.stop_server()


def free_port() -> int:
    """A port of the loopback on which nobody listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_until(true: Callable[[], bool], seconds: float, otherwise: Callable[[], str]) -> None:
    """Ask until ``true()``; after ``seconds`` fail with the words of ``otherwise()``."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, otherwise()
        time.sleep(0.25)


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a process and its group, gently at first."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(20)
        except ProcessLookupError:
            process.wait(20)
            return
        except subprocess.TimeoutExpired:
            continue
