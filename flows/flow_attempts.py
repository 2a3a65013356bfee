"""Several attempts of one flow run: what an attempt that died left behind in Prefect, and what it had done.

A task run's state is told by the process that runs it; when that is killed, its last word stands for ever. So
whoever learns of the end says it: Prefect's hook for crashes, and the next attempt of the same flow run.
"""

from contextlib import suppress
from datetime import datetime
from typing import Any
from uuid import UUID

from httpx import HTTPError
from prefect import Flow, get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.objects import FlowRun, State
from prefect.context import FlowRunContext
from prefect.states import Cancelled, Crashed

from elf.cache.errors import Damaged
from elf.cache.store import Store
from elf.flows.flow_state import was_cancelling
from elf.pipeline.plan import Planned


def settle_on_crash(flow: Flow[..., Any], flow_run: FlowRun, state: State[Any]) -> None:
    """Prefect's hook: the steps that were running when a flow run crashed have ended too.

    A run that ended because it was to be cancelled did not crash.
    """
    _settle(flow_run.id)
    with get_client(sync_client=True) as client, suppress(HTTPError):
        if was_cancelling(client.read_flow_run_states(flow_run.id)):
            client.set_flow_run_state(flow_run.id, Cancelled(message="Flow run was cancelled."), force=True)


def settle_earlier() -> None:
    """At the start of a flow run that was started before: settle what the earlier attempt left open."""
    context = FlowRunContext.get()
    if context is not None and context.flow_run is not None and context.flow_run.run_count > 1:
        _settle(context.flow_run.id)


def first_start() -> datetime | None:
    """When the present flow run began for the first time; None at its first attempt."""
    context = FlowRunContext.get()
    if context is None or context.flow_run is None or context.flow_run.run_count < 2:
        return None
    return context.flow_run.start_time


def built_since(moment: datetime | None, planned: Planned, store: Store) -> bool:
    """Whether the finished artifact of a step was begun since ``moment``: then it need not be forced again.

    Manifests tell whole seconds, so an artifact of the same second counts as begun since.
    """
    if moment is None:
        return False
    try:
        found = store.find(*planned.place)
    except Damaged:
        return False
    return found is not None and datetime.fromisoformat(found.manifest.provenance.started) >= moment.replace(
        microsecond=0
    )


def _settle(run: UUID) -> None:
    """Running tasks crashed with their process; those that never began are dropped, the next attempt asks anew."""
    wanted = FlowRunFilter(id=FlowRunFilterId(any_=[run]))
    with get_client(sync_client=True) as client, suppress(HTTPError):
        for left in client.read_task_runs(flow_run_filter=wanted):
            if left.state is None or left.state.is_final():
                continue
            if left.state.is_running():
                ended = Crashed(message="The process that ran this ended before it could say so.")
                client.set_task_run_state(left.id, ended, force=True)
            else:
                client.delete_task_run(left.id)
