"""``elf status``: what of ``elf up`` is there, line by line. Changes nothing and starts nothing."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from elf.flows.deployments import (
    POOL,
    find_watch,
    folder_of,
    read_deployments,
    shipped_deployments,
    workers_heard,
)
from elf.flows.failing import FAILED, Ended
from elf.flows.prefect_api import PrefectApi, Refused, Unreachable
from elf.flows.service_address import page_of
from elf.flows.service_folder import Record, ServiceFolder
from elf.flows.terminal import make_console
from elf.pipeline.wording import count_of, seconds_text

SHOWN_RUNS = 5
SHOWN_NAMES = 3
_AT_WORK = ["RUNNING", "CANCELLING", "PENDING", "PAUSED"]


@dataclass(frozen=True, slots=True)
class Line:
    """One thing, whether it is as it should be, and words about it."""

    subject: str
    good: bool
    words: str


def show_status(*, as_json: bool) -> None:
    """Print every line. Ends with code 1 if anything is missing."""
    folder = ServiceFolder.here()
    lines = list(look(folder, folder.read()))
    if as_json:
        print(json.dumps([asdict(line) for line in lines], indent=1))
    else:
        out = make_console()
        for line in lines:
            mark = "[green]up  [/]" if line.good else "[bold red]down[/]"
            out.print(f"{mark}  [bold]{line.subject:<12}[/] {line.words}", highlight=False, soft_wrap=True)
    if not all(line.good for line in lines):
        raise Ended(FAILED)


def look(folder: ServiceFolder, record: Record) -> Iterator[Line]:
    """Every line; those about what a server knows only if it answers."""
    server = record.server
    if server is None:
        yield Line("server", False, "none for this folder; `elf up` starts one")
        return
    api = PrefectApi(server.api)
    who = "not started by `elf up`" if server.process is None else f"process {server.process.pid}"
    try:
        yield Line("server", True, f"{page_of(server.api)}, Prefect {api.version()}, {who}")
    except (Unreachable, Refused) as error:
        gone = server.process is not None and not server.process.is_alive()
        yield Line("server", False, f"{who} is gone; `elf up` starts it again" if gone else str(error))
        return
    yield Line("database", True, server.database)
    yield _look_at_pool(api)
    yield _look_at_worker(api, record)
    yield _look_at_deployments(api, folder)
    yield _look_at_automation(api)
    yield from _look_at_runs(api)


def _look_at_pool(api: PrefectApi) -> Line:
    try:
        pool = api.get(f"work_pools/{POOL}")
    except Refused as error:
        if error.code != 404:
            raise
        return Line("pool", False, f"there is no pool {POOL}; `elf up` makes it")
    if pool["is_paused"]:
        return Line("pool", False, f"{POOL} is paused; `elf up` lets it work again")
    return Line("pool", True, f"{POOL}, {pool['type']}")


def _look_at_worker(api: PrefectApi, record: Record) -> Line:
    heard = workers_heard(api)
    ours = record.worker
    others = [name for name in heard if ours is None or name != ours.name]
    more = f", and {count_of(len(others), 'other')}" if others else ""
    if ours is None:
        return Line("worker", False, f"none of this folder{more}; `elf up` starts one")
    if not ours.process.is_alive():
        return Line("worker", False, f"process {ours.process.pid} is gone{more}; `elf up` starts it again")
    if ours.name not in heard:
        return Line(
            "worker", False, f"process {ours.process.pid} has been silent for a minute; see .elf/worker.log"
        )
    return Line("worker", True, f"process {ours.process.pid}, online{more}; store {ours.store or './store'}")


def _look_at_deployments(api: PrefectApi, folder: ServiceFolder) -> Line:
    wanted = {each.name for each in shipped_deployments()}
    there = {each["name"]: folder_of(each) for each in read_deployments(api)}
    elsewhere = sorted(name for name, place in there.items() if place != str(folder.home))
    missing = sorted(wanted - there.keys())
    if missing or elsewhere:
        which = missing or elsewhere
        few = ", ".join(which[:SHOWN_NAMES]) + (", …" if len(which) > SHOWN_NAMES else "")
        words = f"{len(which)} of {len(wanted)} {'missing' if missing else 'work in another folder'} ({few})"
        return Line("deployments", False, f"{words}; `elf up` makes them anew")
    return Line("deployments", True, f"{len(there)}, one for each shipped configuration and ablation")


def _look_at_automation(api: PrefectApi) -> Line:
    found = find_watch(api)
    if found is None or not found["enabled"]:
        return Line("automation", False, "dead flow runs stay Running; `elf up` sets a watch")
    return Line("automation", True, "a flow run without heartbeats becomes Crashed")


def _look_at_runs(api: PrefectApi) -> Iterator[Line]:
    wanted: dict[str, Any] = {
        "work_pools": {"name": {"any_": [POOL]}},
        "flow_runs": {"state": {"type": {"any_": _AT_WORK}}},
        "sort": "START_TIME_DESC",
    }
    runs = api.post("flow_runs/filter", wanted)
    wanted["flow_runs"] = {"state": {"type": {"any_": ["SCHEDULED"]}}}
    waiting = len(api.post("flow_runs/filter", wanted))
    yield Line("flow runs", True, f"{len(runs)} at work, {waiting} waiting")
    for run in runs[:SHOWN_RUNS]:
        yield Line("", True, f"{run['name']}: {run['state_name']}{_since(run['start_time'])}")


def _since(started: str | None) -> str:
    if started is None:
        return ""
    return f" for {seconds_text((datetime.now(UTC) - datetime.fromisoformat(started)).total_seconds())}"
