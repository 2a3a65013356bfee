"""The flow `elf-sweep` on a real server with a real worker: a task per variant, what fails told, cancelled whole."""

from pathlib import Path
from typing import Any

import pytest
from commands import wait_for_the_end
from prefect_service import Service, wait_until

pytestmark = pytest.mark.slow

QUICK: dict[str, Any] = {
    "train.steps": 3,
    "train.heldout": None,
    "pretrain.steps": 2,
    "evaluate.controls": [],
    "sample": [{"name": "ode", "method": "ode", "steps": 2, "guidance": 1.0, "gamma": 0.0, "count": 4}],
}


def submit(service: Service, store: Path, **settings: Any) -> str:
    overrides = QUICK | {key.replace("__", "."): value for key, value in settings.items()}
    return service.submit("optimiser", config="tiny", overrides=overrides, store=str(store), jobs=2)


def end_of(service: Service, run: str, seconds: float = 500) -> dict[str, Any]:
    ends = ("COMPLETED", "FAILED", "CANCELLED", "CRASHED")
    wait_until(
        lambda: service.flow_run(run)["state_type"] in ends, seconds, lambda: service.worker_log.read_text()
    )
    return service.flow_run(run)


@pytest.mark.timeout(900)
def test_variants_are_tasks_and_what_fails_is_told(service: Service, tmp_path: Path) -> None:
    variants = {"good": {"train.seed": 1}, "bad": {"train.latents.std": 0.0001}, "fine": {"train.seed": 2}}
    first = end_of(service, submit(service, tmp_path / "store", sweep__variants=variants))
    assert first["state_name"] == "Failed"
    assert "1 of the 3 variants did not finish: bad" in first["state"]["message"]
    assert service.task_states(first["id"]) == {"good": "Completed", "bad": "Failed", "fine": "Completed"}
    tasks = service.ask("task_runs/filter", {"flow_runs": {"id": {"any_": [first["id"]]}}})
    said = {each["name"]: each["state"]["message"] for each in tasks}
    assert "train.latents" in said["bad"] or "loss" in said["bad"]
    assert "Traceback" not in said["bad"]
    page = (service.work / "runs" / "tiny-sweep" / "report.html").read_text()
    assert "tiny-good" in page
    assert "tiny-bad" not in page

    del variants["bad"]
    again = end_of(service, submit(service, tmp_path / "store", sweep__variants=variants))
    assert again["state_name"] == "Cached"
    assert set(service.task_states(again["id"]).values()) == {"Cached"}
    keys = {artifact["key"] for artifact in service.ask("artifacts/filter", {})}
    assert {"elf-tiny-costs", "elf-tiny-sweep-report"} <= keys


@pytest.mark.timeout(900)
def test_a_cancelled_sweep_leaves_nothing_running(service: Service, tmp_path: Path) -> None:
    store = tmp_path / "store"
    run = submit(service, store, sweep__over={"train.seed": [1, 2, 3]}, train__steps=100_000)
    training = store / ".building" / "train"
    wait_until(lambda: len(list(training.glob("*/metrics.jsonl"))) == 2, 400, service.worker_log.read_text)
    done = service.prefect("flow-run", "cancel", run)
    assert done.returncode == 0, done.stdout + done.stderr
    ended = end_of(service, run, 120)
    assert ended["state_name"] == "Cancelled"
    wait_for_the_end(store, 60)
