"""What Prefect is told: a work pool, a deployment for every shipped configuration, the watch for dead flow runs.

``prefect.yaml`` says the same for servers of your own (``prefect deploy --all``); a test keeps the two alike.
"""

import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from elf.flows.prefect_api import PrefectApi, Refused
from elf.flows.request import shipped_folder
from elf.pipeline.config import shipped_names

POOL = "elf"
FLOW = "elf"
ENTRYPOINT = "elf.flows.experiment.elf"
WATCH = "elf-zombies"
SET_FOLDER = "prefect.deployments.steps.set_working_directory"
HEARTBEAT = 30
"""Seconds between the heartbeats of a flow run; Prefect allows no fewer."""
SILENCE = 3 * HEARTBEAT
"""Seconds without one after which a flow run counts as crashed."""
RECENT = timedelta(seconds=60)
_ENDS = ("Completed", "Cached", "Failed", "TimedOut", "Crashed", "Cancelled")
_PAUSES = ("Paused", "Suspended", "AwaitingRetry", "Scheduled")


@dataclass(frozen=True, slots=True)
class Deployment:
    """One shipped configuration as Prefect shows it."""

    name: str
    description: str

    @property
    def parameters(self) -> dict[str, Any]:
        return {"config": self.name}


def shipped_deployments() -> list[Deployment]:
    """A deployment for each configuration that comes with the product."""
    folder = shipped_folder()
    return [Deployment(name, _describe(folder / f"{name}.yaml")) for name in shipped_names(folder)]


def make_pool(api: PrefectApi) -> bool:
    """Make the work pool, or let it work again if it was paused; whether it is new."""
    try:
        api.post("work_pools/", {"name": POOL, "type": "process", "description": "ELF flow runs"})
    except Refused as error:
        if error.code != 409:
            raise
        api.patch(f"work_pools/{POOL}", {"is_paused": False})
        return False
    return True


def deploy(api: PrefectApi, home: Path) -> tuple[int, int]:
    """Make or renew every deployment, to work in the folder ``home``; how many there are, and how many are new.

    Imports the flow, and with it Prefect, for the schema that parameters are held to when a run is submitted.
    """
    from prefect.utilities.callables import parameter_schema

    from elf.flows.experiment import elf

    before = {each["name"] for each in read_deployments(api)}
    schema = parameter_schema(elf).model_dump_for_openapi() | {"additionalProperties": False}
    flow = api.post("flows/", {"name": FLOW})["id"]
    wanted = shipped_deployments()
    for each in wanted:
        api.post("deployments/", _body(each, flow, schema, home))
    return len(wanted), len({each.name for each in wanted} - before)


def read_deployments(api: PrefectApi) -> list[Mapping[str, Any]]:
    """The deployments of our flow that the server has, ours by name only."""
    names = shipped_names(shipped_folder())
    wanted = {"flows": {"name": {"any_": [FLOW]}}, "deployments": {"name": {"any_": names}}}
    return api.post("deployments/filter", wanted)


def folder_of(deployment: Mapping[str, Any]) -> str | None:
    """The folder in which runs of a deployment work, if it names one."""
    for step in deployment["pull_steps"] or ():
        if SET_FOLDER in step:
            return step[SET_FOLDER]["directory"]
    return None


def workers_heard(api: PrefectApi, *, since: datetime | None = None) -> list[str]:
    """Names of the pool's workers that the server heard from after ``since``, by default within a minute."""
    after = since or datetime.now(UTC) - RECENT
    try:
        workers = api.post(f"work_pools/{POOL}/workers/filter", {})
    except Refused as error:
        if error.code != 404:
            raise
        return []  # no pool yet
    return [each["name"] for each in workers if datetime.fromisoformat(each["last_heartbeat_time"]) > after]


def watch_for_dead_runs(api: PrefectApi) -> bool:
    """Have the server call flow runs without a heartbeat crashed; whether that is new. Never made twice."""
    found = find_watch(api)
    wanted = _watch()
    if found is None:
        api.post("automations/", wanted)
        return True
    api.put(f"automations/{found['id']}", wanted)
    return False


def find_watch(api: PrefectApi) -> Mapping[str, Any] | None:
    """The automation, if the server has it."""
    found = api.post("automations/filter", {"automations": {"name": {"any_": [WATCH]}}})
    return found[0] if found else None


def _watch() -> dict[str, Any]:
    """For runs of our flow alone: others may send no heartbeats, or end under names of their own."""
    ends = [f"prefect.flow-run.{name}" for name in (*_ENDS, *_PAUSES)]
    return {
        "name": WATCH,
        "description": "A flow run that died without a word becomes Crashed.",
        "enabled": True,
        "trigger": {
            "type": "event",
            "match": {"prefect.resource.id": "prefect.flow-run.*"},
            "match_related": {"prefect.resource.role": "flow", "prefect.resource.name": FLOW},
            "after": ["prefect.flow-run.heartbeat"],
            "expect": ["prefect.flow-run.heartbeat", *ends],
            "for_each": ["prefect.resource.id"],
            "posture": "Proactive",
            "threshold": 1,
            "within": SILENCE,
        },
        "actions": [
            {
                "type": "change-flow-run-state",
                "state": "CRASHED",
                "message": f"no heartbeat for {SILENCE} s: its process is gone",
            }
        ],
    }


def _body(deployment: Deployment, flow: str, schema: dict[str, Any], home: Path) -> dict[str, Any]:
    # Named here, the command is started as it is; unnamed, Prefect first starts another Python that looks for
    # a project to install. -P: nothing in the folder of a run can stand in for a module.
    command = shlex.join([sys.executable, "-P", "-m", "prefect.engine"])
    return {
        "flow_id": flow,
        "name": deployment.name,
        "description": deployment.description,
        "entrypoint": ENTRYPOINT,
        "parameters": deployment.parameters,
        "parameter_openapi_schema": schema,
        "enforce_parameter_schema": True,
        "work_pool_name": POOL,
        "job_variables": {"command": command},
        "pull_steps": [{SET_FOLDER: {"directory": str(home)}}],
    }


def _describe(config: Path) -> str:
    """Cost and aim as the head of a configuration tells them."""
    told: dict[str, str] = {}
    key = ""
    for line in config.read_text(encoding="utf-8").splitlines()[1:]:
        if not line.startswith("#"):
            break
        name, words = line[2:16].strip(), line[16:].strip()
        key = name or key
        told[key] = f"{told.get(key, '')} {words}".strip()
    return "\n\n".join(f"**{key.capitalize()}**: {told[key]}." for key in ("time and cost", "aims at"))
