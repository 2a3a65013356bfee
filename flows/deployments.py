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

import yaml

from elf.flows.prefect_api import PrefectApi, Refused
from elf.flows.request import shipped_folder
from elf.pipeline.config import shipped_names

POOL = "elf"
ENTRYPOINTS = {"elf": "elf.flows.experiment.elf", "elf-sweep": "elf.flows.sweep_flow.elf_sweep"}
"""Where each flow is found, by its name."""
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
    """One shipped configuration as Prefect shows it: run by a flow, called by a name, said to be one thing."""

    flow: str
    config: str
    description: str

    @property
    def name(self) -> str:
        return Path(self.config).name

    @property
    def parameters(self) -> dict[str, Any]:
        return {"config": self.config}


def shipped_deployments() -> list[Deployment]:
    """A deployment for each configuration that comes with the product; a sweep runs all its variants."""
    folder = shipped_folder()
    names = [*shipped_names(folder), *(f"ablations/{name}" for name in shipped_names(folder / "ablations"))]
    return [_deployment(name, folder / f"{name}.yaml") for name in names]


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

    Imports the flows, and with them Prefect, for the schema that parameters are held to when a run is submitted.
    """
    from prefect.utilities.callables import parameter_schema

    from elf.flows.experiment import elf
    from elf.flows.sweep_flow import elf_sweep

    before = {each["name"] for each in read_deployments(api)}
    wanted = shipped_deployments()
    for made in (elf, elf_sweep):
        schema = parameter_schema(made).model_dump_for_openapi() | {"additionalProperties": False}
        flow = api.post("flows/", {"name": made.name})["id"]
        for each in wanted:
            if each.flow == made.name:
                api.post("deployments/", _body(each, flow, schema, home))
    return len(wanted), len({each.name for each in wanted} - before)


def read_deployments(api: PrefectApi) -> list[Mapping[str, Any]]:
    """The deployments of our flows that the server has, ours by name only."""
    names = [each.name for each in shipped_deployments()]
    wanted = {"flows": {"name": {"any_": list(ENTRYPOINTS)}}, "deployments": {"name": {"any_": names}}}
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
    if not _says(found, wanted):  # written anew it would forget the heartbeats that it waits for
        api.put(f"automations/{found['id']}", wanted)
    return False


def find_watch(api: PrefectApi) -> Mapping[str, Any] | None:
    """The automation, if the server has it."""
    found = api.post("automations/filter", {"automations": {"name": {"any_": [WATCH]}}})
    return found[0] if found else None


def _says(found: Any, wanted: Any) -> bool:
    """Whether the server's answer holds what was sent; it adds defaults, and keeps no order."""
    if isinstance(wanted, dict):
        return all(name in found and _says(found[name], item) for name, item in wanted.items())
    if isinstance(wanted, list):
        return len(found) == len(wanted) and all(
            any(_says(other, item) for other in found) for item in wanted
        )
    return found == wanted


def _watch() -> dict[str, Any]:
    """For runs of our flows alone: others may send no heartbeats, or end under names of their own."""
    ends = [f"prefect.flow-run.{name}" for name in (*_ENDS, *_PAUSES)]
    return {
        "name": WATCH,
        "description": "A flow run that died without a word becomes Crashed.",
        "enabled": True,
        "trigger": {
            "type": "event",
            "match": {"prefect.resource.id": "prefect.flow-run.*"},
            "match_related": {"prefect.resource.role": "flow", "prefect.resource.name": list(ENTRYPOINTS)},
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
        "entrypoint": ENTRYPOINTS[deployment.flow],
        "parameters": deployment.parameters,
        "parameter_openapi_schema": schema,
        "enforce_parameter_schema": True,
        "work_pool_name": POOL,
        "job_variables": {"command": command},
        "pull_steps": [{SET_FOLDER: {"directory": str(home)}}],
    }


def _deployment(name: str, config: Path) -> Deployment:
    text = config.read_text(encoding="utf-8")
    return Deployment("elf-sweep" if "sweep" in yaml.safe_load(text) else "elf", name, _describe(text))


def _describe(config: str) -> str:
    """Cost and aim as the head of a configuration tells them, or what varies."""
    told: dict[str, str] = {}
    key = ""
    for line in config.splitlines()[1:]:
        if not line.startswith("#"):
            break
        name, words = line[2:16].strip(), line[16:].strip()
        key = name or key
        told[key] = f"{told.get(key, '')} {words}".strip()
    keys = [key for key in ("what varies", "time and cost", "aims at") if key in told]
    return "\n\n".join(f"**{key.capitalize()}**: {told[key]}." for key in keys)
