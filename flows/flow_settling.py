"""Steps of flow runs that ended without a word: what the server still takes for running.

A step's state is told by the process that runs it. Where that was killed with its flow run, the flow run is called
*Crashed* for want of heartbeats, and its steps by whoever comes by: ``elf up``, ``elf down``, or another attempt.
"""

from typing import Any

from elf.flows.deployments import ENTRYPOINTS
from elf.flows.prefect_api import PrefectApi, Refused, Unreachable

_AT_WORK = ("PENDING", "RUNNING")
_ENDED = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")


def settle_tasks(api: PrefectApi) -> None:
    """Call crashed what is at work on behalf of flow runs of ours that have ended."""
    wanted: dict[str, Any] = {
        "flows": {"name": {"any_": list(ENTRYPOINTS)}},
        "flow_runs": {"state": {"type": {"any_": list(_ENDED)}}},
        "task_runs": {"state": {"type": {"any_": list(_AT_WORK)}}},
    }
    ended = {"type": "CRASHED", "message": "The process that ran this ended before it could say so."}
    try:
        for task in api.post("task_runs/filter", wanted):
            api.post(f"task_runs/{task['id']}/set_state", {"state": ended, "force": True})
    except (Refused, Unreachable):
        pass  # the server ended meanwhile: the next one comes by
