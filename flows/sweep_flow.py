"""The Prefect flow ``elf-sweep``: one task per variant, each a run of its own, and one page of all.

A variant runs as ``elf run`` in a process of its own, as under ``elf sweep``: its steps are in its log and in the
store, which alone decides what is built. Entrypoint, without a colon: ``elf.flows.sweep_flow.elf_sweep``.
"""

from contextvars import copy_context
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from prefect import flow, get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Completed
from prefect.states import Failed as FailedState
from pydantic import Field

from elf.cache.files import make_folder
from elf.flows.commands_report import write_page
from elf.flows.flow_artifacts import show_costs, show_page
from elf.flows.flow_attempts import settle_earlier, settle_on_crash
from elf.flows.flow_parameters import REFUSALS, Scalar, StageName, as_overrides
from elf.flows.flow_signals import heeding_termination
from elf.flows.flow_state import under_worker
from elf.flows.request import RUNS
from elf.flows.sweep_costs import cost_of, spending_of
from elf.flows.sweep_running import Crew, Ended, command_of, run_members
from elf.flows.sweeping import Member, Members, load_sweep
from elf.pipeline.runs import PAGE, read_run
from elf.pipeline.wording import count_of, seconds_text

SAYS = "elf: "
"""Begins the paragraph in which a command tells what is wrong."""


def name_run() -> str:
    """``ablations/size``, ``ablations/size until train``: what a flow run is called in the UI."""
    given: dict[str, Any] = dict(flow_run.parameters)
    return f"{given['config']} until {given['until']}" if given.get("until") else str(given["config"])


@flow(
    name="elf-sweep",
    flow_run_name=name_run,
    description="Runs all variants of a configuration with a section `sweep`: what they share is built once.",
    on_crashed=[settle_on_crash],
)
def elf_sweep(
    config: Annotated[str, Field(min_length=1)],
    overrides: dict[str, Scalar | list[Any] | dict[str, Any]] | None = None,
    jobs: Annotated[int, Field(ge=1)] = 1,
    until: StageName | None = None,
    store: str | None = None,
) -> State[Any]:
    """Run every variant of a sweep, as ``elf sweep`` does.

    Args:
        config: Name of a shipped configuration, or the path of one on the worker's machine.
        overrides: Settings by dotted name, for example {"sweep.over": {"train.seed": [0, 1, 2]}}.
        jobs: Variants that run at once.
        until: Stop each after this stage.
        store: Folder of the artifacts on the worker's machine; else $ELF_STORE, else ./store.
    """
    settle_earlier()
    with under_worker(), heeding_termination():
        try:
            settings = as_overrides(overrides or {})
            sweep = load_sweep(config, settings, store, until=until, called="overrides")
        except REFUSALS as error:
            return FailedState(message=str(error))
        work = Work(sweep, make_folder(RUNS / f"{sweep.name}-sweep"), store)
        return _finish(work, _run(work, jobs))


@dataclass(frozen=True, slots=True)
class Work:
    """What the tasks of one flow run share; it never leaves the process. ``ended``: by variant."""

    sweep: Members
    folder: Path
    store: str | None
    crew: Crew = field(default_factory=Crew)
    ended: dict[str, Ended] = field(default_factory=dict)

    def run(self, member: Member) -> Ended:
        """One variant, its lines in its log and in the task's."""
        command = command_of(self.sweep, member, self.store)
        each = self.crew.run(member, command, log=self.log(member), heard=get_run_logger().info)
        self.ended[member.variant] = each
        return each

    def log(self, member: Member) -> Path:
        return self.folder / f"{member.variant}.log"

    def complaint(self, each: Ended) -> str:
        """What a variant that did not finish said at last."""
        lines = self.log(each.member).read_text(encoding="utf-8", errors="replace").splitlines()
        said = lines[-1].removeprefix(SAYS) if lines and lines[-1].startswith(SAYS) else ""
        return said or f"It ended with exit code {each.code}; what it said is in {self.log(each.member)}."


@task(cache_policy=NO_CACHE, persist_result=False, task_run_name="{name}")
def variant(name: str, work: Work, member: Member) -> State[Any]:
    """Run one variant to its end."""
    places = [planned.place for planned in work.sweep.steps(member)]
    missing = sum(member.request.store.find(*place) is None for place in places)
    each = work.run(member)
    if each.code != 0:
        return FailedState(message=work.complaint(each))
    told = f"{missing} of {count_of(len(places), 'step')} were missing, {seconds_text(each.seconds)}"
    return Completed(name="Completed" if missing else "Cached", message=told)


def _run(work: Work, jobs: int) -> list[Ended]:
    """Every variant as a task, in threads that know the flow they are of."""
    contexts = {member.variant: copy_context() for member in work.sweep}

    def run(member: Member) -> Ended:
        contexts[member.variant].run(variant, member.variant, work, member, return_state=True)
        return work.ended[member.variant]

    return run_members(list(work.sweep), run, work.crew, jobs=jobs, ended=lambda each: None)


def _finish(work: Work, ended: list[Ended]) -> State[Any]:
    """One page and what it cost, and a state that says what was done."""
    good = [each.member for each in ended if each.code == 0]
    costs = cost_of(work.sweep, ended)
    show_costs(work.sweep.name, costs)
    if good and work.sweep.until is None:
        runs = [read_run(RUNS, member.run) for member in good]
        write_page(runs, work.folder, alone=False, spending=spending_of(costs))
        show_page(f"{work.sweep.name}-sweep", (work.folder / PAGE).absolute(), work.folder)
    bad = [each.member.variant for each in ended if each.code != 0]
    if bad:
        return FailedState(
            message=f"{len(bad)} of the {count_of(len(ended), 'variant')} did not finish: {', '.join(bad)}. What each "
            f"said stands in its task and in {work.folder.absolute()}. Run the flow again: it goes on with them."
        )
    message = f"{count_of(len(good), 'variant')}, built {count_of(costs.builds, 'step')}"
    return Completed(message=message, name="Completed" if costs.builds else "Cached")
