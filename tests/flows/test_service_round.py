"""The whole round of `elf up`: three at once, status, runs, deaths, `elf down`; nothing left."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from commands import processes_of
from prefect_service import BIN, ROOT, wait_until

from elf.flows.deployments import (
    ENTRYPOINTS,
    find_watch,
    folder_of,
    read_deployments,
    shipped_deployments,
)
from elf.flows.prefect_api import PrefectApi, Refused

PATIENCE = 900


class Project:
    """A folder in which commands are called as by somebody who never heard of PREFECT_API_URL."""

    def __init__(self, home: Path) -> None:
        self.home = home / "project"
        self.home.mkdir(parents=True)
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "ELF_"))
        }
        path = f"{BIN}:{os.environ['PATH']}"
        self.environment = kept | {"PATH": path, "HOME": str(home), "COLUMNS": "80", "OMP_NUM_THREADS": "1"}

    def start(self, *command: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command,
            cwd=self.home,
            env=self.environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def call(self, *command: str) -> tuple[int, str]:
        """Exit code and all that was printed."""
        process = self.start(*command)
        said = process.communicate(timeout=PATIENCE)[0]
        return process.returncode, said

    def run(self, *parameters: str, config: str = "tiny") -> tuple[int, str]:
        given = [word for each in parameters for word in ("-p", each)]
        return self.call("prefect", "deployment", "run", f"elf/{config}", "--watch", *given)

    def services(self) -> Any:
        return json.loads((self.home / ".elf" / "services.json").read_text())


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    made = Project(tmp_path)
    try:
        yield made
    finally:
        made.call("elf", "down")


@pytest.fixture
def neighbour(tmp_path: Path) -> Iterator[Project]:
    made = Project(tmp_path / "neighbour")
    try:
        yield made
    finally:
        made.call("elf", "down")


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_the_whole_round(project: Project, neighbour: Project) -> None:
    three = [each.start("elf", "up") for each in (project, project, neighbour)]
    said = [each.communicate(timeout=PATIENCE)[0] for each in three]
    assert [each.returncode for each in three] == [0, 0, 0], "\n".join(said)
    assert sorted(text.count("started ") for text in said) == [0, 5, 5], said
    assert sorted(text.count("there  ") for text in said) == [0, 0, 5], said
    first = project.services()
    assert first["server"]["api"] != neighbour.services()["server"]["api"]
    assert len(processes_of(project.home)) == 2
    assert neighbour.call("elf", "down")[0] == 0
    assert processes_of(neighbour.home) == []

    assert project.call("elf", "up")[0] == 0
    assert project.services() == first
    code, status = project.call("elf", "status")
    assert code == 0, status
    assert "down" not in status
    assert max(map(len, status.splitlines())) <= 80
    check_parameters(project)
    check_runs(project)
    check_the_deployment_file(project)
    check_recovery(project, first)
    check_the_end(project)


def check_parameters(project: Project) -> None:
    """Wrong ones are refused at submission, by every deployment."""
    code, said = project.call("prefect", "deployment", "run", "elf/tiny", "-p", "only=trian")
    assert code == 1, said
    assert "trian" in said
    api = PrefectApi(project.services()["server"]["api"])
    deployments = read_deployments(api)
    assert sorted(each["name"] for each in deployments) == sorted(each.name for each in shipped_deployments())
    wrongs: list[dict[str, Any]] = [
        {"only": "trian"},
        {"stage": "train"},
        {"config": 3},
        {"jobs": 0},
    ]
    for each, wrong in product(deployments, wrongs):
        body = {"parameters": {**each["parameters"], **wrong}}
        with pytest.raises(Refused) as refused:
            api.post(f"deployments/{each['id']}/create_flow_run", body)
        assert refused.value.code in (409, 422)


def check_runs(project: Project) -> None:
    """Runs work in the folder, without PREFECT_API_URL; parameters do what the options of `elf run` do."""
    code, said = project.run("until=tokenize", 'overrides={"tokenize.rows": 128}')
    assert code == 0, said
    assert sorted(each.name for each in (project.home / "store").iterdir() if each.name[0] != ".") == [
        "fetch",
        "tokenize",
        "tokenizer",
    ]
    code, said = project.run("only=tokenizer", "force=tokenizer", 'overrides={"tokenize.rows": 128}')
    assert code == 0, said
    assert "identical" in (project.home / ".elf" / "worker.log").read_text()
    code, said = project.run(
        'force=["tokenizer", "tokenize"]', "until=tokenize", 'overrides={"tokenize.rows": 128}'
    )
    assert code == 0, said


def check_the_deployment_file(project: Project) -> None:
    """`prefect deploy --all` makes the same deployments, and they run."""
    api = project.services()["server"]["api"]
    there = {"PREFECT_API_URL": api, "ELF_HOME": str(project.home)}
    command = [str(BIN / "prefect"), "--no-prompt", "deploy", "--all"]
    done = subprocess.run(
        command, cwd=ROOT, env=project.environment | there, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    made = {each["name"]: each for each in read_deployments(PrefectApi(api))}
    wanted = {each.name: each for each in shipped_deployments()}
    assert made.keys() == wanted.keys()
    for name, each in made.items():
        ours = wanted[name]
        assert (each["entrypoint"], each["parameters"]) == (ENTRYPOINTS[ours.flow], ours.parameters)
        assert (folder_of(each), each["enforce_parameter_schema"]) == (str(project.home), True)
        assert "command" not in each["job_variables"]  # the mark of those that `elf up` makes
    code, said = project.run("only=fetch")
    assert code == 0, said


def check_recovery(project: Project, first: Any) -> None:
    """What died is missed by `elf status` and started again by `elf up`, the rest stays; a run that died with its
    worker is told to be dead at once."""
    api = PrefectApi(first["server"]["api"])
    watched = start_endless(project)
    watch = find_watch(api)
    os.kill(first["worker"]["process"]["pid"], signal.SIGTERM)  # its runs then end without a word
    wait_until(lambda: len(processes_of(project.home)) == 2, 120, lambda: f"{processes_of(project.home)}")
    code, status = project.call("elf", "status")
    assert code == 1
    assert "gone" in status
    code, said = project.call("elf", "up")
    assert (code, said.count("started ")) == (0, 1), said
    run = api.post("flow_runs/filter", {"sort": "START_TIME_DESC", "limit": 1})[0]
    tasks = api.post("task_runs/filter", {"flow_runs": {"id": {"any_": [run["id"]]}}})
    assert run["state_name"] == "Crashed"
    assert {each["state_name"] for each in tasks} <= {"Cached", "Completed", "Crashed"}
    assert find_watch(api) == watch, "written anew it would forget the heartbeats of other runs"
    assert watched.wait(60) == 1
    assert watched.stdout is not None
    watched.stdout.close()
    second = project.services()
    assert second["server"] == first["server"]
    os.kill(second["server"]["process"]["pid"], signal.SIGKILL)
    assert project.call("elf", "status")[0] == 1
    code, said = project.call("elf", "up")
    assert (code, said.count("started ")) == (0, 1), said
    third = project.services()
    assert third["server"]["api"] == first["server"]["api"]
    assert third["worker"] == second["worker"]
    assert project.call("elf", "status")[0] == 0


def check_the_end(project: Project) -> None:
    """`elf down` during a run: cancelled, no process, no file but the store, the runs and our own."""
    watched = start_endless(project)
    code, said = project.call("elf", "down")
    assert code == 0, said
    assert "1 flow run" in said
    assert watched.wait(60) == 1
    assert watched.stdout is not None
    assert "Cancelled" in watched.stdout.read()
    watched.stdout.close()
    assert processes_of(project.home) == []
    assert project.call("elf", "down") == (0, "Nothing was up in this folder.\n")
    assert {each.name for each in project.home.iterdir()} <= {".elf", "runs", "store"}
    left = {each.name.removesuffix(".1") for each in (project.home / ".elf").iterdir()}
    assert left == {".gitignore", "lock", "prefect", "server.log", "worker.log"}


def start_endless(project: Project) -> subprocess.Popen[str]:
    """A run that trains by now, watched by somebody."""
    watched = project.start(
        *("prefect", "deployment", "run", "elf/tiny", "--watch", "-p", 'overrides={"train.steps": 100000}')
    )
    wait_until(
        lambda: any("elf.stages.worker" in each.cmdline() for each in processes_of(project.home)),
        240,
        lambda: (project.home / ".elf" / "worker.log").read_text(),
    )
    return watched
