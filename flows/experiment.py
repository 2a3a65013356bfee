"""The Prefect flow ``elf``: one task per step of the plan, the store the only truth.

Prefect shows, schedules and logs; whether a step is reused is decided by its key alone, so its own caching and
result storage are off. Steps run one at a time, in the order of the plan. Entrypoint, without a colon:
``elf.flows.experiment.elf``.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Annotated, Any, Literal

import yaml
from prefect import flow, get_run_logger, task
from prefect.artifacts import (
    create_markdown_artifact,
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.states import Completed
from prefect.task_runners import ThreadPoolTaskRunner
from pydantic import Field

from elf.cache.lease import Holder
from elf.cache.manifest import short
from elf.cache.store import Artifact
from elf.flows.request import RUNS, Request, load_request
from elf.flows.score_table import COLUMNS, read_scores
from elf.pipeline.plan import Planned
from elf.pipeline.progress import Bar, figures
from elf.pipeline.runner import Outcome, build_step, needed
from elf.pipeline.runs import PAGE, link_runs
from elf.pipeline.stage import Launch
from elf.pipeline.wording import bytes_text, count_of, seconds_text, size_of

Scalar = bool | int | float | str | None
StageName = Literal[
    "fetch", "tokenizer", "tokenize", "pretrain", "encode", "train", "sample", "control", "evaluate", "report"
]
SAID_EVERY = timedelta(seconds=10)
ONE_AT_A_TIME: Any = ThreadPoolTaskRunner(max_workers=1)  # Any: its class is invariant in the future it makes


@flow(name="elf", flow_run_name="{config}", task_runner=ONE_AT_A_TIME)
def elf(
    config: Annotated[str, Field(min_length=1)],
    overrides: dict[str, Scalar] | None = None,
    only: StageName | None = None,
    until: StageName | None = None,
    force: list[StageName] | None = None,
    store: str | None = None,
) -> State[str]:
    """Build what an experiment is missing and reuse the rest, as ``elf run`` does."""
    settings = [f"{key}={_as_yaml(value)}" for key, value in (overrides or {}).items()]
    work = Work(load_request(config, settings, store))
    request = work.request
    names = needed(request.plan, request.store, only=only, until=until, force=frozenset(force or ()))
    forced = request.plan.select_all(force or ())
    name = request.experiment.name
    _show_settings(request)
    waiting: dict[str, Any] = {}
    for step in names:
        planned = request.plan[step]
        before = [waiting[source] for source in planned.step.inputs.values() if source in waiting]
        if planned.step.spec.launch is Launch.ACCELERATE:
            build(step, work, step in forced, wait_for=before)
        else:
            waiting[step] = build.submit(
                step, work, force=step in forced, wait_for=before, return_state=False
            )
    for future in waiting.values():
        future.result()
    folder = link_runs(RUNS, name, request.experiment, work.outcomes)
    _show_scores(name, work)
    reused = sum(outcome.reused for outcome in work.outcomes.values())
    built = len(work.outcomes) - reused
    message = f"built {count_of(built, 'step')}, reused {reused}"
    if "report" in work.outcomes:
        message += f"; report: {(folder / PAGE).absolute()}"
    return Completed(message=message, name="Cached" if built == 0 else "Completed", data=str(folder))


class Work:
    """What the tasks of one flow run share; it never leaves the process."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.outcomes: dict[str, Outcome] = {}


@task(cache_policy=NO_CACHE, persist_result=False, task_run_name="{step}")
def build(step: str, work: Work, force: bool) -> State[str]:
    """Build or reuse one step; the result is the path of its artifact."""
    request = work.request
    outcome = build_step(
        request.plan, step, request.store, watch=FlowWatcher(), progress=FlowProgress(step), force=force
    )
    work.outcomes[step] = outcome
    path = str(outcome.artifact.path)
    key = short(outcome.planned.key)
    if outcome.reused:
        return Completed(name="Cached", message=f"{key} was there", data=path)
    compared = f", {outcome.compared} to before" if outcome.compared is not None else ""
    message = (
        f"{key} built in {seconds_text(outcome.seconds)}{compared}, {bytes_text(size_of(outcome.artifact))}"
    )
    return Completed(message=message, data=path)


class FlowWatcher:
    """Puts what happens to a step into the task run's log."""

    def __init__(self) -> None:
        self.logger = get_run_logger()
        self.waited = 0.0

    def on_hit(self, planned: Planned, artifact: Artifact) -> None:
        self.logger.info("reused %s", artifact.path)

    def on_wait(self, planned: Planned, holder: Holder | None) -> None:
        if time.monotonic() - self.waited > 60:
            self.waited = time.monotonic()
            self.logger.info("waiting: being built by %s", holder or "children of a process that is gone")

    def on_start(self, planned: Planned) -> None:
        self.logger.info("building %s %s", planned.step.spec.name, planned.key)

    def on_done(self, planned: Planned, outcome: Outcome) -> None:
        self.logger.info("built %s", outcome.artifact.path)


class FlowProgress:
    """Notes go to the task run's log; bars to a progress artifact and, now and then, to the log too."""

    def __init__(self, step: str) -> None:
        self.step = step
        self.logger = get_run_logger()

    def note(self, line: str) -> None:
        self.logger.info(line)

    @contextmanager
    def bar(self, label: str, total: float | None, *, unit: str = "", done: float = 0) -> Iterator[Bar]:
        bar = _FlowBar(self, label, total, unit, done)
        yield bar
        bar.say()


class _FlowBar:
    def __init__(self, owner: FlowProgress, label: str, total: float | None, unit: str, done: float) -> None:
        self.owner, self.label, self.total, self.unit, self.done = owner, label, total, unit, done
        self.shown: dict[str, float | str] = {}
        self.said = time.monotonic()
        self.artifact = None
        if total:
            made = create_progress_artifact(progress=self.percent(), description=f"{owner.step}: {label}")
            self.artifact = made

    def percent(self) -> float:
        return min(100.0, 100.0 * self.done / self.total) if self.total else 0.0

    def advance(self, amount: float = 1, **shown: float | str) -> None:
        self.done += amount
        self.shown |= shown
        if time.monotonic() - self.said >= SAID_EVERY.total_seconds():
            self.say()

    def say(self) -> None:
        self.said = time.monotonic()
        total = f" of {self.total:g}" if self.total is not None else ""
        self.owner.logger.info("%s: %g%s %s %s", self.label, self.done, total, self.unit, figures(self.shown))
        if self.artifact is not None:
            update_progress_artifact(self.artifact, progress=self.percent())  # type: ignore[arg-type]  # in sync code an id, no coroutine


def _show_settings(request: Request) -> None:
    plain = yaml.safe_dump(request.experiment.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
    steps = "\n".join(f"| {each.step.name} | `{short(each.key)}` |" for each in request.plan)
    text = f"Store: `{request.store.root}`\n\n| step | key |\n|---|---|\n{steps}\n\n```yaml\n{plain}```\n"
    create_markdown_artifact(text, key=_artifact_key(request.experiment.name, "settings"))


def _show_scores(name: str, work: Work) -> None:
    rows = read_scores({step: outcome.artifact for step, outcome in work.outcomes.items()})
    if rows:
        table = [{"texts of": row.name, **dict(zip(COLUMNS, row.cells(), strict=True))} for row in rows]
        create_table_artifact(table, key=_artifact_key(name, "scores"))


def _artifact_key(name: str, what: str) -> str:
    """Prefect takes lower-case letters, digits and dashes only."""
    plain = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in name.lower())
    return f"elf-{plain}-{what}"


def _as_yaml(value: Scalar) -> str:
    """A parameter as an override's text: text stays text even where it looks like a number."""
    return yaml.safe_dump(value, default_flow_style=True).removesuffix("...\n").strip()
