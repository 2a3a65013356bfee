"""The flow on a real server with a real worker: deployed as shipped, run twice, cancelled never."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent.parent
BIN = Path(sys.executable).parent
PATIENCE = 240


@dataclass(frozen=True, slots=True)
class Service:
    """A Prefect server of our own, a pool, a worker, and the environment that leads to them."""

    environment: dict[str, str]
    home: Path
    worker_log: Path

    @property
    def api(self) -> str:
        return self.environment["PREFECT_API_URL"]

    def prefect(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(BIN / "prefect"), *arguments],
            cwd=ROOT,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )

    def ask(self, path: str, body: dict[str, Any]) -> Any:
        request = urllib.request.Request(
            f"{self.api}/{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def run_tiny(self, *parameters: str) -> tuple[dict[str, Any], dict[str, str]]:
        """Run the deployment to its end; the flow run, and the state name of each of its tasks."""
        done = self.prefect("deployment", "run", "elf/tiny", "--watch", *parameters)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{self.worker_log.read_text()}"
        flow_run = self.ask("flow_runs/filter", {"sort": "EXPECTED_START_TIME_DESC", "limit": 1})[0]
        wanted = {"flow_runs": {"id": {"any_": [flow_run["id"]]}}}
        tasks = self.ask("task_runs/filter", wanted)
        return flow_run, {task["name"]: task["state_name"] for task in tasks}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    home = tmp_path_factory.mktemp("prefect")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "ELF_"))}
    work = home / "work"
    work.mkdir()
    environment = kept | {
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "PREFECT_HOME": str(home / "prefect"),
        "PREFECT_API_URL": f"http://127.0.0.1:{port}/api",
        "DO_NOT_TRACK": "1",
        "OMP_NUM_THREADS": "1",
        "ELF_HOME": str(work),
    }
    log = home / "worker.log"
    made = Service(environment, work, log)
    started = [
        start(
            ["server", "start", "--host", "127.0.0.1", "--port", str(port)], environment, home / "server.log"
        )
    ]
    try:
        wait_for_server(made.api, home / "server.log")
        made.ask("work_pools/", {"name": "elf", "type": "process"})
        deployed = made.prefect("--no-prompt", "deploy", "--all")
        assert deployed.returncode == 0, deployed.stdout + deployed.stderr
        started.append(start(["worker", "start", "--pool", "elf"], environment, log))
        yield made
    finally:
        for process in reversed(started):
            stop(process)


def start(arguments: list[str], environment: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as output:
        return subprocess.Popen(
            [str(BIN / "prefect"), *arguments],
            cwd=log.parent,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def stop(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(20)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue


def wait_for_server(api: str, log: Path) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"{api}/health", timeout=2):
                return
        except OSError:
            time.sleep(0.5)
    raise AssertionError(f"the server did not come up:\n{log.read_text()}")


@pytest.mark.timeout(600)
def test_a_deployment_runs_and_the_second_run_finds_everything(service: Service) -> None:
    first, built = service.run_tiny()
    assert first["state_type"] == "COMPLETED"
    assert set(built.values()) == {"Completed"}
    assert {
        "fetch-train",
        "tokenize",
        "encode",
        "train",
        "sample-ode",
        "evaluate-ode",
        "report",
    } <= built.keys()
    assert (service.home / "runs" / "tiny" / "report.html").is_file()

    second, reused = service.run_tiny()
    assert second["state_name"] == "Cached"
    assert reused.keys() == built.keys()
    assert set(reused.values()) == {"Cached"}

    keys = {artifact["key"] for artifact in service.ask("artifacts/filter", {})}
    assert {"elf-tiny-settings", "elf-tiny-scores"} <= keys


@pytest.mark.timeout(300)
def test_parameters_are_refused_when_they_are_submitted(service: Service) -> None:
    done = service.prefect("deployment", "run", "elf/tiny", "-p", "only=trian")
    assert done.returncode == 1
    assert "trian" in done.stdout + done.stderr
    done = service.prefect("deployment", "run", "elf/tiny", "-p", "stage=train")
    assert done.returncode == 1
    assert "stage" in done.stdout + done.stderr
    deployment = service.ask("deployments/filter", {"deployments": {"name": {"any_": ["tiny"]}}})[0]["id"]
    for wrong in (
        {"force": ["nothing"]},
        {"config": 3},
        {"overrides": {"train": {"steps": 3}}},
    ):
        with pytest.raises(urllib.error.HTTPError) as refused:
            service.ask(
                f"deployments/{deployment}/create_flow_run", {"parameters": {"config": "tiny", **wrong}}
            )
        assert refused.value.code in (409, 422)
        refused.value.close()
