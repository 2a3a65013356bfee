"""``elf run``: build what is missing, say what happened, name the report."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console

from elf.cache.store import Artifact
from elf.flows.failing import complain
from elf.flows.plan_printing import print_wrapped
from elf.flows.pricing import price
from elf.flows.remotes import elsewhere
from elf.flows.request import RUNS, load_request
from elf.flows.terminal import Narrator, make_console, make_progress
from elf.flows.told_outcomes import telling_outcomes
from elf.pipeline.plan import Plan
from elf.pipeline.runner import Outcome, materialise, needed
from elf.pipeline.runs import PAGE, Naming, RunFolder
from elf.pipeline.wording import count_of, seconds_text
from elf.stages.load import busy_text
from elf.stages.machine import this_machine
from elf.stages.tracking import refuse_missing


def run_experiment(
    config: str,
    overrides: Sequence[str],
    store: str | None,
    *,
    only: str | None,
    until: str | None,
    force: frozenset[str],
) -> None:
    """Load, materialise, name. Raises Misconfigured before anything is built, Failed when a stage fails."""
    began = time.monotonic()
    request = load_request(config, overrides, store)
    out = make_console()
    name = request.experiment.name
    out.print(
        f"[bold]{name}[/]  {count_of(len(request.plan), 'step')}, store {request.store.root}", highlight=False
    )
    remote = elsewhere(complain)
    # A wrong request is refused before anything is written.
    steps = needed(request.plan, request.store, only=only, until=until, force=force, remote=remote)
    trains = request.trains(steps)
    if trains:
        refuse_missing(request.experiment.compute.train.tracker)
    request = price(request, steps, forced=request.plan.select_all(force), remote=remote, warn=complain)
    if told := expected(request.plan):
        out.print(f"{told} on this machine (`elf plan` says what of).", style="dim", highlight=False)
        train = request.experiment.compute.train
        if busy := busy_text(train if trains and not this_machine().uses_gpu(train) else None):
            print_wrapped(out, busy, "yellow")
    if request.source is not None and trains:
        out.print(str(request.source), style="dim", markup=False, highlight=False)
    with request.store.using(request.plan.places()):
        folder = RunFolder(RUNS, name, request.experiment, request.plan)
        outcomes = materialise(
            request.plan,
            request.store,
            watch=telling_outcomes(Naming(folder, Narrator(out, request.plan))),
            progress=make_progress(out),
            only=only,
            until=until,
            force=force,
            remote=remote,
        )
        folder.finish(outcomes)
    _summarise(outcomes, folder.path, time.monotonic() - began, out)


def expected(plan: Plan) -> str:
    """How long the steps with a forecast take, in words; empty where the machine was not measured."""
    told = {each.key: each.step.forecast for each in plan if each.step.forecast}
    if not all(each["machine_measured"] for each in told.values()):
        return ""
    seconds = [each["seconds"] for each in told.values()]
    known = sum(float(each) for each in seconds if isinstance(each, int | float))
    return f"{'At least' if None in seconds else 'Some'} {seconds_text(known)}" if known else ""


def _summarise(outcomes: Mapping[str, Outcome], folder: Path, seconds: float, out: Console) -> None:
    reused = sum(outcome.reused for outcome in outcomes.values())
    built = len(outcomes) - reused
    out.print()
    if "report" in outcomes:
        _print_scores(outcomes, out)
    pulled = sum(outcome.pulled for outcome in outcomes.values())
    told = f", {pulled} of them pulled from the remote" if pulled else ""
    if built == 0:
        line = f"Nothing to build: all {count_of(reused, 'step')} reused{told}."
    else:
        line = f"Built {count_of(built, 'step')} in {seconds_text(seconds)}, reused {reused}{told}."
    out.print(line, highlight=False)
    if "report" in outcomes:
        took = _time_behind(outcomes["report"].artifact, outcomes)
        if took is not None:
            told = f"The stages behind the report took {seconds_text(took)}, each in the run that made it."
            out.print(told, highlight=False)
        out.print(f"Report: {folder / PAGE}", highlight=False, soft_wrap=True)


def _time_behind(report: Artifact, outcomes: Mapping[str, Outcome]) -> float | None:
    """Seconds, as the report tells them; None where not all that it was made of was looked at: it was pulled, say."""
    from elf.stages.lineage import time_of, trace

    keys = set(report.manifest.inputs.values())
    artifacts = {step: outcome.artifact for step, outcome in outcomes.items()}
    behind = {step: each for step, each in artifacts.items() if each.manifest.fingerprint in keys}
    if keys - {each.manifest.fingerprint for each in behind.values()}:
        return None
    return time_of(trace(behind))


def _print_scores(outcomes: Mapping[str, Outcome], out: Console) -> None:
    from elf.flows.score_table import print_scores, read_scores

    rows = read_scores({step: outcome.artifact for step, outcome in outcomes.items()})
    if not rows:
        return
    print_scores(out, rows)
    out.print()
