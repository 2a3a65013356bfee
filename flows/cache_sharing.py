"""What ``elf cache push`` and ``elf cache pull`` do: artifacts to and from ``$ELF_REMOTE``, inputs first."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from rich.console import Console

from elf.cache.errors import BadRemote
from elf.cache.lease import Holder, OnWait
from elf.cache.manifest import Fingerprint, Manifest, short
from elf.cache.pulling import pull
from elf.cache.pushing import push
from elf.cache.remote import Held, Remote
from elf.cache.store import Artifact, Store
from elf.cache.uses import Place
from elf.flows.failing import complain
from elf.flows.remotes import named_remote, read_limit
from elf.flows.request import RUNS, open_store
from elf.flows.terminal import make_console, make_progress
from elf.pipeline.descriptions import read_description
from elf.pipeline.errors import Failed, Misconfigured
from elf.pipeline.finding import KEY_START, find_artifact
from elf.pipeline.runs import RESOLVED, read_run
from elf.pipeline.sharing import keep_below, meter_of
from elf.pipeline.wording import bytes_text, count_of, seconds_text


def push_artifacts(names: Sequence[str], store: str | None, *, with_inputs: bool) -> None:
    """Send artifacts and say what was sent; those that are there already cost two questions each."""
    remote, source, out = named_remote(), open_store(store), make_console()
    wanted: dict[Place, Artifact] = {}
    for name in names:
        for artifact in _meant(name, source):
            if with_inputs:
                _add_inputs(artifact, source, wanted)
            wanted[artifact.manifest.place] = artifact
    sent = 0
    with source.using(list(wanted)), _refusing():
        for artifact in wanted.values():
            began = time.monotonic()
            meter = meter_of(make_progress(out), f"push {artifact.manifest.stage}")
            pushed = push(artifact, remote, meter=meter)
            sent += pushed.sent
            _tell(out, "pushed" if pushed.sent else "there ", artifact.manifest, sum(pushed), began)
    out.print(f"{remote} holds {_all(wanted)}; {bytes_text(sent)} sent.", highlight=False, soft_wrap=True)


def pull_artifacts(names: Sequence[str], store: str | None, *, with_inputs: bool) -> None:
    """Fetch artifacts and say what came; those that are here already cost nothing."""
    remote, target, out = named_remote(), open_store(store), make_console()
    limit, came = read_limit(), 0
    with _refusing():
        wanted = _find_remote(names, remote, with_inputs=with_inputs)
        with target.using(list(wanted)):
            for stage, key in wanted:
                began, progress = time.monotonic(), make_progress(out)
                pulled = pull(
                    target,
                    remote,
                    stage,
                    key,
                    meter=meter_of(progress, f"pull {stage}"),
                    on_wait=_teller(out, stage, key),
                    make_room=lambda coming, tell=progress.note: keep_below(
                        target, remote, limit=limit, coming=coming, tell=tell
                    ),
                )
                if pulled is None:
                    raise Failed(
                        f"{stage} {short(key)} was at {remote} a moment ago and is gone now: somebody deletes files "
                        "there. Push it again from a host that has it, or build it here with `elf run`."
                    )
                came += pulled.received
                word, held = "pulled" if pulled.received else "here  ", wanted[stage, key]
                _tell(out, word, pulled.artifact.manifest, held.bytes(), began)
    out.print(
        f"{target.root} holds {_all(wanted)}; {bytes_text(came)} came.", highlight=False, soft_wrap=True
    )


def _teller(out: Console, stage: str, key: Fingerprint) -> OnWait:
    """Says once who builds or pulls what we want."""
    said: list[Holder | None] = []

    def tell(holder: Holder | None) -> None:
        if not said:
            said.append(holder)
            who = holder or "children of a process that is gone"
            out.print(f"waits   {stage:<10} {short(key)}  for {who}", highlight=False, soft_wrap=True)

    return tell


def _meant(name: str, store: Store) -> Iterator[Artifact]:
    """The steps of a run, in the order in which they were built, or one artifact."""
    if "/" in name or not (RUNS / name / RESOLVED).is_file():
        yield find_artifact(name, store, RUNS)
        return
    record = read_run(RUNS, name)
    for step in record.broken:
        complain(f"{name}/{step} is gone here, so it is not pushed.")
    steps = {artifact.manifest.place: artifact for artifact in record.steps.values()}
    if not steps:
        raise Failed(
            f"The run '{name}' has no step whose artifact is here, so there is nothing to push: run it again with "
            "`elf run`, with the settings of its experiment.yaml."
        )
    yield from sorted(steps.values(), key=lambda artifact: artifact.manifest.provenance.started)


def _add_inputs(artifact: Artifact, store: Store, found: dict[Place, Artifact]) -> None:
    """What an artifact was made from, as far as it is here, before what was made from it.

    Of an input that it was made without, what that would have been made from.
    """
    for role, key in artifact.manifest.inputs.items():
        stored = [store.find(path.parent.name, key) for path in store.root.glob(f"[a-z]*/{key}")]
        described = None if any(stored) else read_description(artifact.path, role)
        if described is not None and described.fingerprint == key:
            _add_inputs(Artifact(artifact.path, described), store, found)
        for above in stored:
            if above is not None and above.manifest.place not in found:
                _add_inputs(above, store, found)
                found[above.manifest.place] = above


def _find_remote(names: Sequence[str], remote: Remote, *, with_inputs: bool) -> Mapping[Place, Held]:
    """What the remote holds under each name, inputs first. Raises Failed or Misconfigured as for a local key."""
    known = list(remote.keys())
    stages = {key: stage for stage, key in known}
    found: dict[Place, Held] = {}

    def add(place: Place) -> bool:
        held = None if place in found else remote.find(*place)
        if held is not None:
            for key in held.manifest.inputs.values() if with_inputs else ():
                if key in stages:
                    add((stages[key], key))
            found[place] = held
        return place in found

    for name in names:
        stage, _, start = name.strip("/").rpartition("/")
        if not KEY_START.fullmatch(start):
            raise Misconfigured(
                f"'{name}' is no key: give the start of one (four hexadecimal digits or more) or STAGE/START."
            )
        fitting = [place for place in known if place[1].startswith(start) and stage in ("", place[0])]
        finished = [place for place in fitting if remote.find(*place) is not None]
        if len(finished) > 1:
            several = ", ".join(f"{stage}/{short(key)}" for stage, key in finished)
            raise Misconfigured(
                f"'{name}' fits several artifacts of {remote}: {several}. Give more of the key."
            )
        if not finished:
            raise Failed(f"{remote} holds no artifact '{name}': give the start of its key, or STAGE/START.")
        add(finished[0])
    return found


@contextmanager
def _refusing() -> Iterator[None]:
    try:
        yield
    except BadRemote as fault:
        raise Misconfigured(str(fault)) from fault


def _tell(out: Console, word: str, manifest: Manifest, size: int, began: float) -> None:
    took = "" if word.strip() in ("there", "here") else f", {seconds_text(time.monotonic() - began)}"
    line = f"{word}  {manifest.stage:<10} {short(manifest.fingerprint)}  {bytes_text(size)}{took}"
    out.print(line, highlight=False, soft_wrap=True)


def _all(places: Mapping[Place, object]) -> str:
    return "it" if len(places) == 1 else f"all {count_of(len(places), 'artifact')}"
