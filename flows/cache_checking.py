"""``elf cache verify``, ``audit`` and ``stats``: whether what is stored is right, and what it is like."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from rich.console import Console

from elf.cache.collecting import places_in
from elf.cache.errors import Damaged
from elf.cache.manifest import JSON, FileRecord, Manifest, short
from elf.cache.store import Artifact, Store
from elf.cache.uses import Place
from elf.cache.verifying import Verified, verify_artifact, verify_sample
from elf.flows.cache_curing import cure
from elf.flows.cache_tables import make_table
from elf.flows.request import RUNS, open_store
from elf.flows.terminal import make_console, make_progress
from elf.pipeline.errors import Failed
from elf.pipeline.finding import find_artifact, find_place
from elf.pipeline.plan import key_fault
from elf.pipeline.wording import bytes_text, count_of, rows_of

if TYPE_CHECKING:
    from elf.stages.channels import Statistics
    from elf.stages.moments import Moments

Check: TypeAlias = Callable[[Artifact], Verified]
FARTHEST = 3
"""Channels of the largest and smallest deviation that are named."""


def verify_artifacts(
    keys: Sequence[str], store: str | None, *, sample: int | None, seed: int, as_json: bool
) -> None:
    """Compare artifacts, all or those named, with their manifests. Raises Failed naming those that are damaged."""
    opened = open_store(store)
    if not opened.root.is_dir():
        raise Failed(f"There is no store {opened.root}, so nothing was compared; name it with --store.")
    chosen = {find_place(key, opened, RUNS): 0 for key in keys} or _all_places(opened)
    out = make_console()
    results: dict[Place, Verified] = {}
    with _checking(out, sample, seed, sum(chosen.values())) as check:
        for place in chosen:
            done = _verify(opened, place, check)
            if done is not None:
                results[place] = done
                if not as_json:
                    _print_verified(out, place, done)
    if as_json:
        plain = [{"stage": place[0], "key": place[1], **asdict(done)} for place, done in results.items()]
        print(json.dumps({"sample": sample, "seed": seed, "artifacts": plain}, indent=1))
    else:
        rows = f"names and sizes, and {sample or 0:,} random rows a store (seed {seed})"
        how = "every file and row" if sample is None else rows
        out.print(f"Compared {how} of {count_of(len(results), 'artifact')}.", highlight=False)
    if bad := [place for place, done in results.items() if done.faults]:
        named = ", ".join(f"{stage} {short(key)}" for stage, key in bad)
        raise Failed(
            f"{len(bad)} of {count_of(len(results), 'artifact')} {'is' if len(bad) == 1 else 'are'} not what was "
            f"recorded: {named}. {cure(bad, opened)}"
        )


@contextmanager
def _checking(out: Console, sample: int | None, seed: int, size: int) -> Iterator[Check]:
    """How one artifact is verified; what takes long shows how far it is."""
    if sample is not None:
        yield partial(verify_sample, rows=sample, seed=seed)
        return
    with make_progress(out).bar("verify", size or None, unit="bytes") as bar:
        yield partial(verify_artifact, advance=bar.advance)


def _print_verified(out: Console, place: Place, done: Verified) -> None:
    word = "[red]bad[/]" if done.faults else "[green]ok[/] "
    rows = f"{done.rows:,} rows, " if done.rows else ""
    read = f"{rows}{bytes_text(done.bytes)}" if done.bytes else "names and sizes"
    out.print(f"{word}  {place[0]} [dim]{short(place[1])}[/]  {read}", highlight=False)
    for fault in done.faults:
        out.print(f"     {fault}", style="yellow", markup=False, highlight=False, soft_wrap=True)


def _all_places(store: Store) -> dict[Place, int]:
    """Every artifact and the bytes of its files; damaged ones too, of none."""
    return {place: _bytes_of(store, place) for place in sorted(places_in(store.root))}


def _bytes_of(store: Store, place: Place) -> int:
    try:
        found = store.find(*place)
    except Damaged:  # to be told when it is compared
        return 0
    return 0 if found is None else sum(each.bytes for each in _files(found.manifest))


def _files(manifest: Manifest) -> tuple[FileRecord, ...]:
    return (*manifest.files.values(), *manifest.aux.values())


def _verify(store: Store, place: Place, check: Check) -> Verified | None:
    """What became of one artifact; None if it was collected meanwhile."""
    try:
        artifact = store.find(*place)
        if artifact is None:
            return None
        done = check(artifact)
    except Damaged as fault:
        return Verified(0, 0, (str(fault),))
    if done.faults and not artifact.path.exists():
        return None
    wrong = key_fault(artifact.manifest)
    return done if wrong is None else Verified(done.bytes, done.rows, (wrong, *done.faults))


def audit_artifact(key: str, store: str | None, *, rows: int, seed: int, as_json: bool) -> None:
    """Encode some rows again and compare. Raises Failed where the store holds other states."""
    opened = open_store(store)
    artifact = find_artifact(key, opened, RUNS)
    from elf.stages.auditing import audit, views_of

    out = make_console()
    stored = rows_of(artifact)
    most = (rows if stored is None else min(rows, stored)) * len(views_of(artifact))
    with make_progress(out).bar("audit", most or None, unit="rows") as bar:
        done = audit(artifact, opened, rows=rows, seed=seed, advance=bar.advance)
    if as_json:
        print(json.dumps({"key": artifact.manifest.fingerprint, "seed": seed, **asdict(done)}, indent=1))
    else:
        table = make_table(("view",), ("rows", "largest", "mean", "equal numbers", "worst row"))
        for view in done.views:
            table.add_row(
                view.view,
                f"{view.rows:,}",
                f"{view.largest:.2g}",
                f"{view.mean:.2g}",
                f"{view.equal:.1%}",
                f"{view.worst:,}",
            )
        out.print(table)
        out.print(
            f"Relative distance of stored rows from the same rows encoded again (seed {seed}); {done.tolerance:g} is "
            f"allowed for {done.dtype}.",
            highlight=False,
        )
    if done.faults:
        words = " ".join(done.faults)
        raise Failed(
            f"encode {short(artifact.manifest.fingerprint)}: {words} {cure([artifact.manifest.place], opened)}"
        )


def show_statistics(key: str, store: str | None, *, as_json: bool) -> None:
    """Mean and deviation of stored states. Raises Failed where the artifact's facts say otherwise."""
    opened = open_store(store)
    artifact = find_artifact(key, opened, RUNS)
    from elf.stages.channels import measure_channels

    out = make_console()
    shards = artifact.manifest.facts.get("shards")
    with make_progress(out).bar("stats", shards if isinstance(shards, int) else None, unit="shards") as bar:
        found = measure_channels(artifact, opened, bar.advance)
    if as_json:
        print(json.dumps(_plain(artifact.manifest.fingerprint, found), indent=1))
    else:
        _print(found)
    if not found.agrees:
        raise Failed(
            f"The facts of encode {short(artifact.manifest.fingerprint)} say mean {found.said_mean:.6g} and std "
            f"{found.said_std:.6g}, by which training scales; its store has {found.whole.mean:.6g} and "
            f"{found.whole.std:.6g}. {cure([artifact.manifest.place], opened)}"
        )


def _print(found: "Statistics") -> None:
    from elf.stages.moments import combine

    out = make_console()
    table = make_table(("states",), ("mean", "std", "lowest", "highest", "numbers"))
    every = {name: combine(channels) for name, channels in found.views.items()}
    for name, each in {**every, "in training": found.whole}.items():
        numbers = (each.mean, each.std, each.low, each.high)
        table.add_row(name, *(f"{number:.4g}" for number in numbers), f"{each.count:,}")
    out.print(table)
    out.print()
    channels = found.channels
    order = sorted(range(len(channels)), key=lambda number: channels[number].std)
    middle = channels[order[len(order) // 2]].std
    out.print(f"Std of {count_of(len(channels), 'channel')}: median {middle:.4g}", highlight=False)
    for word, numbers in (("largest", order[::-1]), ("smallest", order)):
        named = ", ".join(f"{channels[number].std:.4g} (channel {number})" for number in numbers[:FARTHEST])
        out.print(f"  {word}: {named}", highlight=False, soft_wrap=True)
    if found.agrees:
        words = f"The facts say the same; train.latents.std: measured divides by {found.said_std:.4g}."
        out.print(words, highlight=False)


def _plain(key: str, found: "Statistics") -> dict[str, JSON]:
    from elf.stages.moments import combine

    return {
        "key": key,
        "training": _numbers(found.whole),
        "facts": {"mean": found.said_mean, "std": found.said_std, "agree": found.agrees},
        "views": {name: _numbers(combine(channels)) for name, channels in found.views.items()},
        "channels": {
            "mean": [each.mean for each in found.channels],
            "std": [each.std for each in found.channels],
        },
    }


def _numbers(moments: "Moments") -> dict[str, JSON]:
    return {
        "mean": moments.mean,
        "std": moments.std,
        "min": moments.low,
        "max": moments.high,
        "count": moments.count,
    }
