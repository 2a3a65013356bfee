"""Ends what a project folder runs: flow runs by cancelling them, then the worker, then the server.

A worker that is told to end kills its flow runs and leaves them *Running* on the server. So they are cancelled
first, as by hand; whatever ended otherwise is called crashed, and no process is left.
"""

import time
from collections.abc import Collection, Mapping
from typing import Any

from elf.flows.background import Background, end, processes_with, wait_gone
from elf.flows.deployments import POOL, workers_heard
from elf.flows.flow_settling import settle_tasks
from elf.flows.prefect_api import PrefectApi, Refused, Unreachable
from elf.flows.service_folder import Server, ServiceFolder, Worker
from elf.flows.services import worker_name

SERVER_GRACE = 20.0
RUN_GRACE = 45.0
"""More than the 30 s that Prefect gives a flow run, which gives its own children 25."""
_AT_WORK = ("PENDING", "RUNNING", "CANCELLING")


def stop_server(server: Server) -> None:
    """End a server of ours."""
    if server.process is not None:
        end([server.process], grace=SERVER_GRACE)


def stop_worker(folder: ServiceFolder, worker: Worker | None, server: Server | None) -> int:
    """End the worker and every flow run of this folder, also those of a worker that is gone; how many runs."""
    api = _reached(server)
    processes = flow_processes(folder)
    runs = set(processes.values())
    if worker is not None and api is not None:
        runs &= _at_work(api).keys()  # the process of a run that has just ended may still be there
        for run in runs:
            _set_state(api, run, "CANCELLING", "`elf down` was called")
        wait_gone(processes, RUN_GRACE)
        _wait_until_told(api, runs, 10.0)
    if worker is not None:
        end([worker.process], grace=RUN_GRACE)
    left = flow_processes(folder)
    runs |= set(left.values())
    end(left, grace=RUN_GRACE)
    if api is not None:
        _tell_truth(api, runs, "`elf down` ended it", alone=_alone(api, folder))
        settle_tasks(api)
    return len(runs)


def settle_dead_runs(api: PrefectApi, folder: ServiceFolder) -> None:
    """Where this folder's worker is gone and no other is there, its flow runs have ended too: say so at once."""
    if _alone(api, folder) and not flow_processes(folder):
        _tell_truth(api, (), "its worker was gone when `elf up` came", alone=True)
    settle_tasks(api)


def _alone(api: PrefectApi, folder: ServiceFolder) -> bool:
    return not set(workers_heard(api)) - {worker_name(folder)}


def flow_processes(folder: ServiceFolder) -> Mapping[Background, str]:
    """Processes of flow runs that work in this folder, children included, with the ids of the runs."""
    return processes_with({"ELF_HOME": str(folder.home)}, of="PREFECT__FLOW_RUN_ID")


def _reached(server: Server | None) -> PrefectApi | None:
    api = PrefectApi(server.api) if server is not None else None
    return api if api is not None and api.answers() else None


def _at_work(api: PrefectApi) -> dict[str, str]:
    """Ids of the pool's flow runs that count as at work, with the types of their states."""
    wanted: dict[str, Any] = {
        "work_pools": {"name": {"any_": [POOL]}},
        "flow_runs": {"state": {"type": {"any_": list(_AT_WORK)}}},
    }
    return {run["id"]: run["state_type"] for run in api.post("flow_runs/filter", wanted)}


def _wait_until_told(api: PrefectApi, runs: Collection[str], seconds: float) -> None:
    """Give the worker the time to say how the runs ended."""
    deadline = time.monotonic() + seconds
    while any(run in runs for run in _at_work(api)) and time.monotonic() < deadline:
        time.sleep(0.2)


def _tell_truth(api: PrefectApi, runs: Collection[str], message: str, *, alone: bool) -> None:
    """End on the server what has no process any more: ``runs``, and if no other worker is there, all of the pool."""
    for run, state in _at_work(api).items():
        if run in runs or alone:
            ended = "CANCELLED" if state == "CANCELLING" else "CRASHED"
            _set_state(api, run, ended, message)


def _set_state(api: PrefectApi, run: str, state: str, message: str) -> None:
    try:
        api.post(f"flow_runs/{run}/set_state", {"state": {"type": state, "message": message}})
    except (Refused, Unreachable):
        pass  # it ended meanwhile, or the server did: nothing is left to be said
