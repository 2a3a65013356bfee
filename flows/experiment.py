"""The Prefect flow ``elf``: one task per step of the plan, the store the only truth.

Prefect shows, schedules and logs; whether a step is reused is decided by its key alone, so its own caching and
result storage are off. Steps run one at a time, in the order of the plan, in the main thread, where a signal
reaches them. Entrypoint, without a colon: ``elf.flows.experiment.elf``.
"""

from collections.abc import Iterator
from typing import Annotated, Any
from uuid import UUID

from prefect import flow, get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Cancelled, Completed
from prefect.states import Failed as FailedState
from pydantic import Field

from elf.cache.manifest import short
from elf.flows.flow_artifacts import show_report, show_scores, show_settings
from elf.flows.flow_attempts import built_since, first_start, settle_earlier, settle_on_crash
from elf.flows.flow_parameters import REFUSALS, Scalar, StageName, as_overrides
from elf.flows.flow_progress import FlowProgress, FlowWatcher
from elf.flows.flow_signals import heeding_termination
from elf.flows.flow_state import is_cancelling, under_worker
from elf.flows.pricing import price
from elf.flows.remotes import elsewhere
from elf.flows.request import RUNS, Request, load_request
from elf.pipeline.runner import Outcome, build_step, materialise, needed
from elf.pipeline.runs import PAGE, Naming, RunFolder
from elf.pipeline.sharing import Elsewhere
from elf.pipeline.spinning import spin_briefly
from elf.pipeline.wording import bytes_text, count_of, seconds_text, size_of
from elf.stages.tracking import refuse_missing


def name_run() -> str:
    """``tiny``, ``mine until train``: what a flow run is called in the UI, after its experiment."""
    given: dict[str, Any] = dict(flow_run.parameters)
    words = [str((given.get("overrides") or {}).get("name") or given["config"])]
    words += [f"{option} {given[option]}" for option in ("only", "until") if given.get(option)]
    if given.get("force"):
        words.append(f"force {' '.join(_listed(given['force']))}")
    return " ".join(words)


@flow(
    name="elf",
    flow_run_name=name_run,
    description="Runs an experiment of embedded language flows, from text to report: what is missing is built, "
    "what is in the store is reused.",
    on_crashed=[settle_on_crash],
)
def elf(
    config: Annotated[str, Field(min_length=1)],
    overrides: dict[str, Scalar] | None = None,
    only: StageName | None = None,
    until: StageName | None = None,
    force: StageName | list[StageName] | None = None,
    store: str | None = None,
) -> State[Any]:
    """Build what an experiment is missing and reuse the rest, as ``elf run`` does.

    Args:
        config: Name of a shipped configuration, or the path of one on the worker's machine.
        overrides: Settings by dotted name, for example {"train.steps": 100}.
        only: Build the steps of this stage alone; what they need must be in the store.
        until: Stop after this stage.
        force: Build these stages again, compare with what is there and put the new in its place.
        store: Folder of the artifacts on the worker's machine; else $ELF_STORE, else ./store.
    """
    settle_earlier()
    spin_briefly()
    with under_worker(), heeding_termination():
        try:
            settings = as_overrides(overrides or {})
            request = load_request(config, settings, store, called="overrides")
            remote = elsewhere(get_run_logger().warning)
            steps = needed(
                request.plan,
                request.store,
                only=only,
                until=until,
                force=frozenset(_listed(force)),
                remote=remote,
            )
            if request.trains(steps):
                refuse_missing(request.experiment.compute.train.tracker)
            forced = request.plan.select_all(_listed(force))
            request = price(request, steps, forced=forced, remote=remote, warn=get_run_logger().warning)
            folder = RunFolder(RUNS, request.experiment.name, request.experiment, request.plan)
        except REFUSALS as error:
            return FailedState(message=str(error))
        show_settings(request)
        if request.source is not None and request.trains(steps):
            get_run_logger().info(str(request.source))
        with request.store.using(request.plan.places()):
            return _run(Work(request, folder, remote, alone=only is not None), steps, forced)


def _run(work: "Work", steps: tuple[str, ...], forced: set[str]) -> State[Any]:
    """All steps in order. After the first that fails the others are only asked, so that they show as not run."""
    plan = work.request.plan
    states: dict[str, State[Any]] = {}
    failed: str | None = None
    for step in steps:
        before = [states[source] for source in plan[step].step.inputs.values() if source in states]
        if failed is not None:
            before.append(states[failed])
        one = build.with_options(name=step)
        states[step] = one(step, work, step in forced, wait_for=before, return_state=True)
        if failed is None and not states[step].is_completed():
            failed = step
    if failed is not None:
        return FailedState(message=f"Step '{failed}': {states[failed].message}")
    return _finish(work)


def _finish(work: "Work") -> State[Any]:
    """Names for people, scores and figures, and a state that says what was done."""
    name, outcomes = work.request.experiment.name, work.outcomes
    work.folder.finish(outcomes)
    page = (work.folder.path / PAGE).absolute()
    artifacts = {step: outcome.artifact for step, outcome in outcomes.items()}
    show_scores(name, artifacts)
    show_report(name, artifacts, page)
    reused = sum(outcome.reused for outcome in outcomes.values())
    built = len(outcomes) - reused
    message = f"built {count_of(built, 'step')}, reused {reused}"
    if "report" in outcomes:
        message += f"; report: {page}"
    if flow_run.id is not None and is_cancelling(UUID(flow_run.id)):
        return Cancelled(message=f"cancelled too late: {message}")
    return Completed(message=message, name="Cached" if built == 0 else "Completed", data=str(page.parent))


class Work:
    """What the tasks of one flow run share; it never leaves the process. ``alone``: no step builds its inputs."""

    def __init__(self, request: Request, folder: RunFolder, remote: Elsewhere, *, alone: bool) -> None:
        self.request, self.folder, self.remote, self.alone = request, folder, remote, alone
        self.outcomes: dict[str, Outcome] = {}

    def build(self, step: str, *, force: bool) -> Outcome:
        """One step, and what it needs after all where the remote that held it does not bring it."""
        plan, store = self.request.plan, self.request.store
        watch, progress = Naming(self.folder, FlowWatcher()), FlowProgress(step)
        outcome = build_step(
            plan, step, store, watch=watch, progress=progress, force=force, remote=self.remote
        )
        if outcome is not None:
            self.outcomes[step] = outcome
        else:
            only, until = (step, None) if self.alone else (None, step)
            self.outcomes |= materialise(
                plan, store, watch=watch, progress=progress, only=only, until=until, remote=self.remote
            )
        return self.outcomes[step]


@task(cache_policy=NO_CACHE, persist_result=False, task_run_name="{step}")
def build(step: str, work: Work, force: bool) -> State[Any]:
    """Build or reuse one step of the plan."""
    request = work.request
    force = force and not built_since(first_start(), request.plan[step], request.store)
    try:
        outcome = work.build(step, force=force)
    except REFUSALS as error:
        return FailedState(message=str(error))
    return Completed(
        name="Cached" if outcome.reused else "Completed",
        message=", ".join(_describe(outcome)),
        data=str(outcome.artifact.path),
    )


def _describe(outcome: Outcome) -> Iterator[str]:
    key, size = short(outcome.planned.key), bytes_text(size_of(outcome.artifact))
    if outcome.reused:
        yield f"{key} pulled from the remote" if outcome.pulled else f"{key} was there"
    else:
        yield f"{key} built in {seconds_text(outcome.seconds)}"
        if outcome.compared is not None:
            yield f"{outcome.compared} to before"
    yield size
    yield str(outcome.artifact.path)


def _listed(force: StageName | list[StageName] | None) -> list[StageName]:
    return [force] if isinstance(force, str) else force or []
