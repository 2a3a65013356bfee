"""Commands that look and change nothing: ``elf why``, ``elf runs``, ``elf show``."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from elf.cache.manifest import short
from elf.cache.store import Artifact
from elf.flows.failing import complain
from elf.flows.plan_printing import print_wrapped
from elf.flows.remotes import elsewhere
from elf.flows.request import RUNS, load_request, shipped_folder
from elf.flows.run_states import state_of
from elf.flows.score_table import print_scores, read_scores
from elf.flows.terminal import make_console
from elf.pipeline.config import shipped_names
from elf.pipeline.explain import Explainer, Explanation
from elf.pipeline.forecast import read_forecast
from elf.pipeline.runner import needed
from elf.pipeline.runs import PAGE, RESOLVED, RunRecord, list_runs, read_run
from elf.pipeline.wording import bytes_text, count_of, seconds_text, size_of
from elf.stages.pace import read_pace


def show_why(
    config: str, stage: str | None, overrides: Sequence[str], store: str | None, *, as_json: bool
) -> None:
    """Explain one stage or step, or all of a plan: of a configuration, or of a run of this folder as it was."""
    request = load_request(_configured(config), overrides, store)
    names = request.plan.names() if stage is None else request.plan.select(stage)
    remote = elsewhere(complain)
    explainer = Explainer(request.plan, request.store, needed(request.plan, request.store, remote=remote))
    told = [explainer.explain(name) for name in names]
    pulled = [each.state == "build" and remote.holds(each.planned) for each in told]
    if as_json:
        plain = [{**_plain_explanation(each), "remote": far} for each, far in zip(told, pulled, strict=True)]
        print(json.dumps(plain, indent=1))
        return
    for each, far in zip(told, pulled, strict=True):
        for line in each.lines():
            print(line)
        if far:
            print("  The remote holds it: a run that needs it pulls it and builds nothing.")


def _configured(name: str) -> str:
    """The settings of the run of that name, where it is the name of no configuration."""
    settings = RUNS / name / RESOLVED
    ours = Path(name).name == name and name not in shipped_names(shipped_folder()) and settings.is_file()
    return str(settings) if ours else name


def show_runs(*, as_json: bool) -> None:
    """List what lies under ``./runs``."""
    records = list_runs(RUNS)
    if as_json:
        print(json.dumps([_plain_run(record, soon=True) for record in records], indent=1))
        return
    out = make_console()
    if not records:
        out.print(f"No runs under {RUNS.absolute()} yet: `elf run quickstart` makes one.", highlight=False)
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("run", overflow="fold")
    table.add_column("steps", no_wrap=True, justify="right")
    for header in ("last built (UTC)", "state"):
        table.add_column(header, no_wrap=True)
    for record in records:
        last = max((_built(artifact) for artifact in record.steps.values()), default="")
        gone = f" (+{len(record.broken)} gone)" if record.broken else ""
        table.add_row(record.name, f"{len(record.steps)}{gone}", last, state_of(record, soon=True).brief)
    out.print(table)
    out.print()
    out.print(f"Reports: {RUNS}/RUN/{PAGE}", style="dim", highlight=False)


def show_run(name: str, *, as_json: bool) -> None:
    """Show one run: lineage, scores, where things lie. Raises Failed if there is none of that name."""
    record = read_run(RUNS, name)
    if as_json:
        print(json.dumps(_plain_run(record), indent=1))
        return
    out = make_console()
    steps = sorted(record.steps.items(), key=lambda item: item[1].manifest.provenance.started)
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("step", max_width=22, overflow="fold")
    for header in ("key", "built (UTC)"):
        table.add_column(header, no_wrap=True)
    for header in ("took", "bytes"):
        table.add_column(header, no_wrap=True, justify="right")
    table.add_column("commit", no_wrap=True)
    for step, artifact in steps:
        made = artifact.manifest.provenance
        table.add_row(
            step,
            f"[dim]{short(artifact.manifest.fingerprint)}[/]",
            _built(artifact),
            seconds_text(made.seconds),
            bytes_text(size_of(artifact)),
            _commit(artifact),
        )
    out.print(table)
    out.print()
    for broken in record.broken:
        out.print(f"{broken}: its artifact is gone or damaged; `elf run` builds it again.", style="yellow")
    rows = read_scores(dict(steps))
    if rows:
        print_scores(out, rows)
        out.print()
    for step, artifact in steps:
        if (pace := read_pace(artifact.path / "aux")) is not None:
            print_wrapped(out, f"{step}: {pace}.")
    standing = state_of(record)
    hosts = sorted({artifact.manifest.provenance.host for _, artifact in steps})
    total = sum(artifact.manifest.provenance.seconds for _, artifact in steps)
    where = f" on {', '.join(hosts)}" if hosts else ""
    out.print(
        f"{count_of(len(steps), 'step')} built in {seconds_text(total)} altogether{where}.", highlight=False
    )
    if standing.halt is not None or not standing.done:
        print_wrapped(out, standing.words, "yellow")
    out.print(f"Settings: {record.path / RESOLVED}", highlight=False, soft_wrap=True)
    if (record.path / PAGE).is_file():
        out.print(f"Report: {record.path / PAGE}", highlight=False, soft_wrap=True)


def _built(artifact: Artifact) -> str:
    return artifact.manifest.provenance.started[:16].replace("T", " ")


def _commit(artifact: Artifact) -> str:
    made = artifact.manifest.provenance
    return "" if made.git is None else made.git[:7] + ("+" if made.dirty else "")


def _plain_explanation(told: Explanation) -> dict[str, Any]:
    return {
        "step": told.planned.step.name,
        "stage": told.planned.step.spec.name,
        "key": told.planned.key,
        "state": told.state,
        "nearest": None if told.nearest is None else told.nearest.manifest.fingerprint,
        "changes": [{"setting": each.place, "old": each.old, "new": each.new} for each in told.changes],
        "causes": [
            {"setting": each.place, "old": each.old, "new": each.new, "way": way}
            for each, way in told.causes()
        ],
        "upstream": [_plain_explanation(each) for each in told.upstream],
    }


def _plain_run(record: RunRecord, *, soon: bool = False) -> dict[str, Any]:
    page = record.path / PAGE
    return {
        "run": record.name,
        "folder": str(record.path),
        "report": str(page) if page.is_file() else None,
        "broken": list(record.broken),
        **state_of(record, soon=soon).plain(),
        "steps": {step: _plain_artifact(artifact) for step, artifact in record.steps.items()},
    }


def _plain_artifact(artifact: Artifact) -> dict[str, Any]:
    made, manifest = artifact.manifest.provenance, artifact.manifest
    return {
        "stage": manifest.stage,
        "key": manifest.fingerprint,
        "content": manifest.content,
        "path": str(Path(artifact.path)),
        "inputs": dict(manifest.inputs),
        "facts": dict(manifest.facts),
        "bytes": size_of(artifact),
        "started": made.started,
        "seconds": made.seconds,
        "planned": read_forecast(artifact.path),
        "host": made.host,
        "git": made.git,
        "dirty": made.dirty,
        "argv": list(made.argv),
        "versions": dict(made.versions),
    }
