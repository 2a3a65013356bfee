"""Faults on a real server and worker: nobody outlives a run, its end is told, and the next run goes on.

Every fault comes at a moment that the store tells: a shard is on the disk, a checkpoint is complete. The runs that
go on must come to the bytes of a run that nothing disturbed.
"""

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from commands import call, contents, copy_store, half_made
from prefect_service import Service, serving, wait_until

from elf.flows.deployments import watch_for_dead_runs
from elf.flows.flow_settling import settle_tasks
from elf.flows.prefect_api import PrefectApi

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

SETTINGS = {"tokenize.rows": 1024, "encode.shard_bytes": 32_768, "train.steps": 96}
"""Long enough that a fault comes before the end."""
SLOWLY = SETTINGS | {"compute.encode.workers": 2, "compute.encode.batch_tokens": 32}
ENDLESS = SLOWLY | {"train.steps": 20_000}
GONE = 10.0
"""Seconds within which no process of a run may be left, on a machine that has nothing else to do."""
PATIENCE = 600


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    settings = {"PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30", "PREFECT_WORKER_QUERY_SECONDS": "1"}
    with serving(tmp_path_factory.mktemp("faults"), settings) as made:
        watch_for_dead_runs(PrefectApi(made.api))
        yield made


@pytest.fixture(autouse=True)
def _both_are_up(service: Service) -> None:
    if service.server is None or service.server.poll() is not None:
        service.server = None
        service.start_server()
    if service.worker is None or service.worker.poll() is not None:
        service.worker = None
        service.start_worker()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store of an undisturbed run up to the trained model."""
    folder = tmp_path_factory.mktemp("undisturbed")
    call(
        folder,
        "run",
        "tiny",
        "--until",
        "train",
        "--set",
        *(f"{key}={value}" for key, value in SETTINGS.items()),
    )
    return folder / "store"


@pytest.fixture
def to_train(whole: Path, tmp_path: Path) -> Path:
    """A store with everything that training takes."""
    return copy_store(whole, tmp_path / "store", without=_only(whole, "train"))


def submit(service: Service, store: Path) -> str:
    return service.submit(until="train", store=str(store), overrides=SLOWLY)


def test_cancelled_while_encoding(service: Service, whole: Path, to_train: Path) -> None:
    shutil.rmtree(to_train / "encode")
    run = submit(service, to_train)
    wait_for(to_train, "encode/*/moments/*/*.json")
    assert len([each for each in processes_of(run) if "spawn" in " ".join(each.cmdline())]) >= 2
    told = service.ask(f"flow_runs/{run}/set_state", {"state": {"type": "CANCELLING"}})
    assert told["status"] == "ACCEPT"
    all_gone(run)
    assert ended(service, run) == "Cancelled"
    assert half_made(to_train)
    comes_to_the_same(service, submit(service, to_train), whole, to_train)


def test_cancelled_while_training(service: Service, whole: Path, to_train: Path) -> None:
    run = submit(service, to_train)
    wait_for_checkpoint(to_train)
    assert training(to_train)
    done = service.prefect("flow-run", "cancel", run)
    assert done.returncode == 0, done.stderr
    all_gone(run)
    assert ended(service, run) == "Cancelled"
    states_become(service, run, {"Cached", "Crashed"})
    comes_to_the_same(service, submit(service, to_train), whole, to_train)


def test_a_killed_flow_and_the_same_run_at_once(service: Service, whole: Path, to_train: Path) -> None:
    run = submit(service, to_train)
    wait_for_checkpoint(to_train)
    engine(run).kill()
    again = submit(service, to_train)
    writers: list[int] = []

    def over() -> bool:
        writers.append(len(training(to_train)))
        return service.flow_run(again)["state_type"] in ("COMPLETED", "FAILED", "CRASHED")

    wait_until(over, PATIENCE, lambda: f"{service.task_states(again)}")
    assert max(writers) == 1
    assert ended(service, run) == "Crashed"
    states_become(service, run, {"Cached", "Crashed"})
    assert service.flow_run(again)["state_name"] == "Completed"
    assert contents(to_train) == contents(whole)
    assert not processes_of(run)


def test_a_killed_training_child(service: Service, whole: Path, to_train: Path) -> None:
    run = service.submit(until="sample", store=str(to_train), overrides=SLOWLY)
    wait_for_checkpoint(to_train)
    training(to_train)[0].kill()
    assert ended(service, run) == "Failed"
    message = service.flow_run(run)["state"]["message"]
    assert message.startswith("Step 'train': The train process was ended by SIGKILL")
    assert "log.txt" in message
    states_become(service, run, {"Cached", "Failed", "NotReady"})
    assert service.task_states(run)["train"] == "Failed"
    retried = service.prefect("flow-run", "retry", run)
    assert retried.returncode == 0, retried.stderr
    assert ended(service, run) == "Completed"
    states_become(service, run, {"Cached", "Completed", "Failed"})
    found = contents(to_train)
    assert {key: found[key] for key in contents(whole)} == contents(whole)


def test_a_worker_that_is_told_to_end(service: Service, whole: Path, to_train: Path) -> None:
    run = submit(service, to_train)
    wait_for_checkpoint(to_train)
    assert service.worker is not None
    service.worker.send_signal(signal.SIGTERM)
    all_gone(run)
    service.worker.wait(60)
    service.worker = None
    service.start_worker()
    comes_to_the_same(service, submit(service, to_train), whole, to_train)
    assert ended(service, run) == "Crashed"
    goes_on(service, run, whole, to_train)
    states_become(service, run, {"Cached", "Crashed"})


def test_a_killed_worker_takes_its_runs_along(service: Service, whole: Path, to_train: Path) -> None:
    run = submit(service, to_train)
    wait_for_checkpoint(to_train)
    assert service.worker is not None
    service.worker.kill()
    service.worker.wait(60)
    all_gone(run)
    assert ended(service, run) == "Crashed"
    settle_tasks(PrefectApi(service.api))
    states_become(service, run, {"Cached", "Crashed"})
    service.worker = None
    service.start_worker()
    goes_on(service, run, whole, to_train)


def test_a_server_that_is_killed_and_comes_back(service: Service, whole: Path, to_train: Path) -> None:
    run = submit(service, to_train)
    wait_for_checkpoint(to_train)
    assert service.server is not None
    os.killpg(service.server.pid, signal.SIGKILL)
    service.server.wait(60)
    service.server = None
    first = set(to_train.glob(".building/train/*/checkpoints/step_*"))
    wait_until(
        lambda: bool(set(to_train.glob("**/checkpoints/step_*")) - first),
        PATIENCE,
        lambda: "training did not go on without the server",
    )
    service.start_server()
    comes_to_the_same(service, run, whole, to_train)
    states_become(service, run, {"Cached", "Completed"})


def test_a_cancellation_that_no_worker_hears(service: Service, to_train: Path) -> None:
    run = service.submit(until="train", store=str(to_train), overrides=ENDLESS)
    wait_for_checkpoint(to_train)
    assert service.worker is not None
    service.worker.send_signal(signal.SIGSTOP)
    try:
        service.ask(f"flow_runs/{run}/set_state", {"state": {"type": "CANCELLING"}})
        wait_until(lambda: not processes_of(run), PATIENCE, lambda: f"{processes_of(run)}")
        assert ended(service, run) == "Cancelled"
    finally:
        service.worker.send_signal(signal.SIGCONT)
    states_become(service, run, {"Cached", "Crashed"})


def test_a_run_that_is_called_crashed_while_it_lives(service: Service, to_train: Path) -> None:
    run = service.submit(until="train", store=str(to_train), overrides=ENDLESS)
    wait_for_checkpoint(to_train)
    late = {"type": "CRASHED", "message": "no heartbeat"}
    service.ask(f"flow_runs/{run}/set_state", {"state": late, "force": True})
    wait_until(
        lambda: service.flow_run(run)["state_name"] == "Running",
        PATIENCE,
        lambda: "the run did not say that it lives",
    )
    service.ask(f"flow_runs/{run}/set_state", {"state": {"type": "CANCELLING"}})
    all_gone(run)
    assert ended(service, run) == "Cancelled"


def wait_for(store: Path, pattern: str) -> None:
    """Until something half-made matches."""
    wait_until(lambda: any(store.glob(f".building/{pattern}")), PATIENCE, lambda: f"no {pattern} in {store}")


def wait_for_checkpoint(store: Path) -> None:
    wait_for(store, "train/*/checkpoints/*/COMPLETE")


def processes_of(run: str) -> list[psutil.Process]:
    """Living processes of a flow run: its own and everything below it, which inherit its name."""
    return [
        process
        for process in _living()
        if _ask(lambda p=process: p.environ().get("PREFECT__FLOW_RUN_ID")) == run
    ]


def training(store: Path) -> list[psutil.Process]:
    """Living processes that train into a store."""
    return [
        process
        for process in _living()
        if (line := _ask(process.cmdline))
        and line[1:3] == ["-m", "elf.stages.worker"]
        and str(store) in line[3]
    ]


def engine(run: str) -> psutil.Process:
    """The process that runs the flow itself."""
    return next(process for process in processes_of(run) if "prefect.engine" in process.cmdline())


def all_gone(run: str) -> None:
    """Wait until no process of a run is left: ``GONE`` seconds, and in proportion more where others compute."""
    seconds = GONE * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    began = time.monotonic()
    wait_until(
        lambda: not processes_of(run),
        seconds,
        lambda: f"after {seconds:.0f} s: {[p.cmdline() for p in processes_of(run)]}",
    )
    print(f"gone after {time.monotonic() - began:.1f} of {seconds:.0f} s")


def ended(service: Service, run: str) -> str:
    """The name of a run's final state, once it has one."""
    wait_until(
        lambda: service.flow_run(run)["state_type"] in ("COMPLETED", "FAILED", "CANCELLED", "CRASHED"),
        PATIENCE,
        lambda: f"{service.flow_run(run)['state_name']}: {service.task_states(run)}",
    )
    return service.flow_run(run)["state_name"]


def states_become(service: Service, run: str, allowed: set[str]) -> None:
    """Wait until all task runs of a run, of earlier attempts too, are in these states: the last words come late."""

    def states() -> set[str]:
        tasks = service.ask("task_runs/filter", {"flow_runs": {"id": {"any_": [run]}}})
        return {task["state_name"] for task in tasks}

    wait_until(lambda: states() <= allowed, 120, lambda: f"{service.task_states(run)}")


def goes_on(service: Service, run: str, whole: Path, store: Path) -> None:
    """Retry a run; no attempt of it may show as going on."""
    attempts = service.flow_run(run)["run_count"]
    retried = service.prefect("flow-run", "retry", run)
    assert retried.returncode == 0, retried.stderr
    wait_until(
        lambda: service.flow_run(run)["run_count"] > attempts, PATIENCE, lambda: "it was not started again"
    )
    comes_to_the_same(service, run, whole, store)
    states_become(service, run, {"Cached", "Completed", "Crashed"})


def comes_to_the_same(service: Service, run: str, whole: Path, store: Path) -> None:
    """Wait for a run's end: the store must hold the bytes of the undisturbed run, and nothing half-made."""
    assert ended(service, run) in ("Completed", "Cached")
    assert contents(store) == contents(whole)
    assert half_made(store) == []


def _living() -> list[psutil.Process]:
    return [
        process
        for process in psutil.process_iter()
        if _ask(process.status) not in (None, psutil.STATUS_ZOMBIE)
    ]


def _ask(question: Callable[[], Any]) -> Any:
    try:
        return question()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return None


def _only(store: Path, stage: str) -> str:
    return next(f"{stage}/{path.name}" for path in (store / stage).iterdir())
