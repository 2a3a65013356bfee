"""Runs a plan: what is there is taken, what is missing is built, and nothing is built that nobody needs."""

import json
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal, Protocol

from elf.cache.errors import CacheError, Damaged
from elf.cache.files import filling, make_folder, remove_tree
from elf.cache.lease import Holder
from elf.cache.manifest import JSON, Manifest, merkle_root, short
from elf.cache.recording import records
from elf.cache.records import check_files, prove_files
from elf.cache.store import Artifact, Building, Store
from elf.pipeline import provenance
from elf.pipeline.descriptions import FOLDER as DESCRIPTIONS
from elf.pipeline.descriptions import describe, keep_description
from elf.pipeline.errors import Failed, Misconfigured
from elf.pipeline.forecast import keep_forecast
from elf.pipeline.launch import run_child
from elf.pipeline.plan import Plan, Planned, Tie
from elf.pipeline.progress import LoggedProgress, Progress
from elf.pipeline.sharing import NOWHERE, Elsewhere
from elf.pipeline.stage import StageContext, Unbuilt
from elf.pipeline.stretches import Stretches


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one step. ``compared`` is set only for a forced rebuild of something that existed; ``pulled``
    says that what is reused came from a remote just now."""

    planned: Planned
    artifact: Artifact
    reused: bool
    seconds: float
    compared: Literal["identical", "differs"] | None = None
    pulled: bool = False


class Watcher(Protocol):
    """Told what happens to each step, in order."""

    def on_hit(self, planned: Planned, artifact: Artifact) -> None: ...
    def on_wait(self, planned: Planned, holder: Holder | None) -> None: ...
    def on_start(self, planned: Planned) -> None: ...
    def on_pull(self, planned: Planned) -> None: ...
    def on_done(self, planned: Planned, outcome: Outcome) -> None: ...


def materialise(
    plan: Plan,
    store: Store,
    *,
    watch: Watcher,
    progress: Progress,
    only: str | None = None,
    until: str | None = None,
    force: frozenset[str] = frozenset(),
    remote: Elsewhere = NOWHERE,
) -> dict[str, Outcome]:
    """Bring the wanted steps into being, inputs first; what ``remote`` holds is taken from there, not built.

    ``only`` and ``force`` name a stage or a step; ``only`` builds nothing upstream; ``until`` stops there.
    Returns what was built or reused, by step name; steps that were not needed are absent.
    """
    done: dict[str, Outcome] = {}
    forced = plan.select_all(force)
    waiting = list(needed(plan, store, only=only, until=until, force=force, remote=remote))
    while waiting:
        name = waiting.pop(0)
        outcome = build_step(
            plan, name, store, watch=watch, progress=progress, force=name in forced, remote=remote
        )
        if outcome is not None:
            done[name] = outcome
        else:  # what that step is made of is needed after all
            again = needed(plan, store, only=only, until=until, force=force, remote=remote)
            waiting = [each for each in again if each not in done]
    return done


def needed(
    plan: Plan,
    store: Store,
    *,
    only: str | None = None,
    until: str | None = None,
    force: frozenset[str] = frozenset(),
    remote: Elsewhere = NOWHERE,
) -> tuple[str, ...]:
    """Names of the steps to visit, inputs first: targets, forced ones, and what must be built or brought for them.

    What lies upstream of a finished artifact is visited only if it is there, so that a run can name all it rests on;
    ``remote`` is asked only for what is wanted and missing. Raises Misconfigured where ``only``, ``until`` and
    ``force`` ask for what cannot be had together.
    """
    if only is not None and until is not None:
        raise Misconfigured(
            f"--only {only} builds one stage and --until {until} all up to one; give one of them."
        )
    targets = plan.select(only or until or "") if only or until else plan.leaves()
    within = set(targets if only is not None else plan.upstream(targets))
    for name in sorted(force):
        if not within.intersection(plan.select(name)):
            limit = f"--only {only}" if only is not None else f"--until {until}"
            raise Misconfigured(f"--force {name} has no step that {limit} reaches; leave one of them out.")
    forced = plan.select_all(force) & within

    @cache
    def there(name: str) -> bool:
        return _find(plan[name], store, force=name in forced) is not None

    must = {*targets, *forced}
    for name in reversed(plan.names()):
        if name not in must or (name not in forced and (there(name) or remote.holds(plan[name]))):
            continue
        above = plan.needs(name)
        if only is not None:  # they are not built, but may be brought
            above = [each for each in above if not there(each) and remote.holds(plan[each])]
        must.update(above)
    linked = {name for name in plan.upstream(must) if there(name)} if only is None else set[str]()
    return tuple(name for name in plan.names() if name in must | linked)


def build_step(
    plan: Plan,
    name: str,
    store: Store,
    *,
    watch: Watcher,
    progress: Progress,
    force: bool = False,
    remote: Elsewhere = NOWHERE,
) -> Outcome | None:
    """One step: reuse the finished artifact, bring it from ``remote``, wait for whoever builds it, or build it.

    None: it did not come though ``remote`` held it; ask ``needed`` again. Raises Failed when an input is missing or
    the stage fails; the half-built folder stays for the next run.
    """
    planned = plan[name]
    stage, key = planned.place
    began = time.monotonic()
    found = _find(planned, store, force=force)
    if found is not None and not force:
        return _hit(planned, found, began, watch)
    if not force and remote.holds(planned):
        return _bring(planned, store, remote, began, watch, progress)
    _inputs(plan, planned, store)  # what is missing is said before anything is waited for
    read = dict.fromkeys((*planned.step.inputs.values(), *plan.needs(name)))
    uses = [plan[source].place for source in read]
    if force and store.path(stage, key).exists():
        with store.rebuilding(stage, key, uses=uses) as building, filling(building.path):
            manifest = _build(plan, planned, store, building, watch, progress)
            replaced = store.replace(building, manifest)
        outcome = Outcome(planned, replaced.artifact, False, time.monotonic() - began)
        if replaced.identical is not None:
            outcome = replace(outcome, compared="identical" if replaced.identical else "differs")
    else:

        def waits(holder: Holder | None) -> None:
            watch.on_wait(planned, holder)

        with (
            store.building(stage, key, uses=uses, on_wait=waits) as building,
            filling(building.path),
        ):
            meanwhile = store.find(stage, key)
            if meanwhile is not None:
                return _hit(planned, meanwhile, began, watch)
            manifest = _build(plan, planned, store, building, watch, progress)
            outcome = Outcome(planned, store.commit(building, manifest), False, time.monotonic() - began)
    watch.on_done(planned, outcome)
    return outcome


def _bring(
    planned: Planned, store: Store, remote: Elsewhere, began: float, watch: Watcher, progress: Progress
) -> Outcome | None:
    def waits(holder: Holder | None) -> None:
        watch.on_wait(planned, holder)

    watch.on_pull(planned)
    artifact = remote.bring(planned, store, progress=progress, on_wait=waits)
    if artifact is None:
        return None
    outcome = Outcome(planned, artifact, True, time.monotonic() - began, pulled=True)
    watch.on_done(planned, outcome)
    return outcome


def _hit(planned: Planned, found: Artifact, began: float, watch: Watcher) -> Outcome:
    check_files(found.path, found.manifest, deep=False)
    watch.on_hit(planned, found)
    return Outcome(planned, found, True, time.monotonic() - began)


def _find(planned: Planned, store: Store, *, force: bool) -> Artifact | None:
    """The finished artifact of a step. A damaged one raises, but to a forced rebuild it is as good as absent."""
    try:
        return store.find(*planned.place)
    except Damaged:
        if not force:
            raise
        return None


@dataclass(frozen=True, slots=True)
class _Inputs:
    """What a step is given: finished artifacts, and descriptions of inputs that are not needed as such."""

    built: Mapping[str, Artifact]
    unbuilt: Mapping[str, Unbuilt]

    def artifacts(self) -> Iterator[Artifact]:
        yield from self.built.values()
        for each in self.unbuilt.values():
            yield from each.inputs.values()


def _inputs(plan: Plan, planned: Planned, store: Store) -> _Inputs:
    built: dict[str, Artifact] = {}
    unbuilt: dict[str, Unbuilt] = {}
    step = planned.step
    for role, source in step.inputs.items():
        upstream, tie = plan[source], step.tie(role)
        artifact = _input(planned, role, upstream, store, needed=tie is Tie.BUILT)
        if artifact is not None:
            built[role] = artifact
        if tie is Tie.INLINE or artifact is None:
            above = {
                name: _input(planned, f"{role}'s {name}", plan[below], store, needed=tie is Tie.INLINE)
                for name, below in upstream.step.inputs.items()
            }
            there = {name: each for name, each in above.items() if each is not None}
            unbuilt[role] = Unbuilt(describe(upstream), upstream.step.section, upstream.step.compute, there)
    return _Inputs(built, unbuilt)


def _input(planned: Planned, role: str, upstream: Planned, store: Store, *, needed: bool) -> Artifact | None:
    artifact = store.find(*upstream.place)
    if artifact is None and needed:
        source = upstream.step.name
        raise Failed(
            f"Step '{planned.step.name}' needs '{source}' ({upstream.step.spec.name} {short(upstream.key)}) as "
            f"its {role}, and {store.root} does not hold it. Build it first with --until {source}, or leave "
            "out --only."
        )
    return artifact


def _build(
    plan: Plan, planned: Planned, store: Store, building: Building, watch: Watcher, progress: Progress
) -> Manifest:
    """Run the stage in its private folder and describe the result. What fails names the log in that folder."""
    inputs = _inputs(plan, planned, store)
    for artifact in inputs.artifacts():
        prove_files(artifact.path, artifact.manifest)
    watch.on_start(planned)
    step = planned.step
    log = make_folder(building.path / "aux") / "log.txt"
    keep_forecast(building.path, step.forecast)
    stretches = Stretches(building.path)
    logged = LoggedProgress(progress, log)
    context = StageContext(building.path, inputs.built, step.compute, logged, inputs.unbuilt, plan.called())
    remove_tree(building.path / DESCRIPTIONS)  # of a try that had other inputs
    for role in inputs.unbuilt.keys() - inputs.built.keys():
        keep_description(building.path, role, inputs.unbuilt[role].manifest)
    logged.record(f"{step.name}: {step.spec.name} {planned.key} begins")
    try:
        with filling(building.path):
            if step.spec.launched(step.compute):
                facts = run_child(step.spec, step.section, context, lock=building.fd)
            else:
                facts = step.spec.resolve()(step.section, context)
    except BaseException as error:
        with suppress(OSError, CacheError):  # a disk too full for the log must not hide why
            logged.record(f"{step.name}: {type(error).__name__}: {error}")
            if not isinstance(error, Failed | Misconfigured | CacheError):
                logged.record(traceback.format_exc())
            stretches.end()
        if isinstance(error, Exception) and str(log) not in str(error):
            words = str(error).rstrip(".")
            error.args = (f"{words}. The log of {step.name} is {log}.",)
        raise
    stretches.end()
    logged.record(f"{step.name}: done")
    return _manifest(planned, building.path, _plain(facts, step.name), stretches)


def _manifest(planned: Planned, path: Path, facts: Mapping[str, JSON], stretches: Stretches) -> Manifest:
    found = records(path)
    return replace(
        describe(planned),
        content=merkle_root(found.files),
        files=found.files,
        aux=found.aux,
        facts=facts,
        provenance=provenance.record(started=stretches.started, seconds=stretches.seconds()),
    )


def _plain(facts: Mapping[str, JSON], name: str) -> Mapping[str, JSON]:
    """The facts as JSON gives them back, so that what is stored is what was said."""
    try:
        return json.loads(json.dumps(facts, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise Failed(
            f"Step '{name}' reported a fact that is not plain, finite data: {error}. This is a fault of its stage; "
            "please report it."
        ) from error
