"""``elf cache pin``, ``unpin`` and ``gc``: what stays and what goes."""

import json
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from elf.cache.collecting import Item, Survey, survey
from elf.cache.collector import collecting
from elf.cache.errors import CacheError
from elf.cache.manifest import JSON, short
from elf.cache.pins import pin, read_pins, unpin
from elf.cache.roots import RunsFolder, forget, known_folders
from elf.cache.store import Store
from elf.cache.uses import Place, await_collector
from elf.flows.cache_tables import (
    count_kinds,
    make_table,
    name_of,
    parse_duration,
    plain_item,
    relative,
    rows_text,
    summarise_kept,
)
from elf.flows.request import RUNS, open_store
from elf.flows.terminal import make_console
from elf.pipeline.errors import Failed, Misconfigured
from elf.pipeline.finding import find_place
from elf.pipeline.wording import age_text, bytes_text


def pin_artifact(key: str, note: str, store: str | None) -> None:
    """Pin one artifact. Raises Failed where there is none such, or where it is being removed this moment."""
    opened = open_store(store)
    place = find_place(key, opened, RUNS)
    pin(opened.root, place, note)
    await_collector(opened.root, [place])
    try:
        found = opened.find(*place)
    except CacheError:
        found = place  # damaged, and still kept
    if found is None:
        unpin(opened.root, place)
        stage, fingerprint = place
        raise Failed(
            f"{stage} {short(fingerprint)} was collected meanwhile; nothing is pinned. `elf run` with the experiment "
            "it belongs to builds it again."
        )
    words = f"Pinned {place[0]} {short(place[1])}: gc keeps it and what it was made from."
    make_console().print(words, highlight=False)


def unpin_artifact(key: str, store: str | None) -> None:
    """Take a pin away, also that of an artifact that is gone. Raises Failed where none such is pinned."""
    opened = open_store(store)
    place = _pinned_place(key, opened)
    if not unpin(opened.root, place):
        stage, fingerprint = place
        raise Failed(f"{stage} {short(fingerprint)} is not pinned; `elf cache ls` shows what is.")
    make_console().print(f"Unpinned {place[0]} {short(place[1])}.", highlight=False)


def _pinned_place(key: str, store: Store) -> Place:
    try:
        return find_place(key, store, RUNS)
    except Failed:
        stage, _, start = key.rpartition("/")
        pinned = [
            place for place in read_pins(store.root) if place[1].startswith(start) and stage in ("", place[0])
        ]
        if len(pinned) != 1:
            raise
        return pinned[0]


def collect(
    store: str | None,
    *,
    delete: bool,
    grace: str,
    runs: Sequence[str],
    forgotten: Sequence[str],
    as_json: bool,
) -> None:
    """Say, or with ``delete`` do, what a collection removes.

    Raises Misconfigured for a folder that is not there, Damaged while something that stays cannot be read, StoreBusy
    while another collection runs.
    """
    opened, seconds = open_store(store), parse_duration(grace)
    folders = [RUNS, *map(Path, runs)]
    for folder in folders[1:]:
        if not folder.is_dir():
            raise Misconfigured(f"--runs {folder} is no folder; name one that holds runs.")
    _forget(opened, forgotten)
    if not delete:
        _tell(opened, survey(opened, grace=seconds, runs=folders), as_json=as_json)
        return
    out = make_console()
    gone: list[Item] = []
    spared: list[tuple[Item, str]] = []
    with collecting(opened, grace=seconds, runs=folders) as collector:
        for item in collector.survey.removable:
            why = collector.remove(item)
            if why is not None:
                spared.append((item, why))
            else:
                gone.append(item)
            if not as_json:
                words = f"kept     {name_of(item)}  {why}" if why else f"removed  {name_of(item)}"
                out.print(f"{words}  {bytes_text(item.bytes)}", highlight=False, soft_wrap=True)
        if as_json:
            print(json.dumps(_plain(opened, collector.survey, gone, spared, deleted=True), indent=1))
            return
        if gone:
            out.print()
            out.print(
                f"Freed {bytes_text(sum(item.bytes for item in gone))}: {count_kinds(gone)}.", highlight=False
            )
        else:
            out.print("Nothing to remove.", highlight=False)
        _tell_kept(out, collector.survey)


def _tell(store: Store, seen: Survey, *, as_json: bool) -> None:
    """What a collection would remove. Raises Damaged where it would refuse."""
    going = seen.removable
    if as_json:
        print(json.dumps(_plain(store, seen, going, (), deleted=False), indent=1))
    else:
        out = make_console()
        _tell_going(out, going)
        _tell_kept(out, seen)
        if going and not seen.damaged:
            out.print("Nothing was removed: --delete does it.", highlight=False)
    if seen.damaged:
        raise seen.damaged[0]


def _tell_going(out: Console, going: Sequence[Item]) -> None:
    if not going:
        out.print("Nothing to remove.", highlight=False)
        return
    table = make_table(("would go", "key"), ("rows", "bytes", "used"))
    now = time.time()
    for item in going:
        what = item.place[0] if item.kind == "artifact" else f"{item.kind} {item.place[0]}".rstrip()
        age = age_text(max(now - item.used, 0.0))
        table.add_row(
            what,
            f"[dim]{short(item.place[1])}[/]",
            rows_text(item),
            bytes_text(item.bytes),
            age if age == "now" else f"{age} ago",
        )
    out.print(table)
    out.print()
    out.print(
        f"Would free {bytes_text(sum(item.bytes for item in going))}: {count_kinds(going)}.", highlight=False
    )


def _tell_kept(out: Console, seen: Survey) -> None:
    kept = [item for item in seen.items if item.kept]
    size = bytes_text(sum(item.bytes for item in kept))
    out.print(f"Kept: {size}: {summarise_kept(kept)}.", highlight=False, soft_wrap=True)
    for folder in seen.folders:
        where = relative(folder.path)
        if folder.seen:
            out.print(f"Runs in {where}.", style="dim", highlight=False, soft_wrap=True)
        else:
            out.print(_unseen(folder), style="yellow", highlight=False, soft_wrap=True)


def _unseen(folder: RunsFolder) -> str:
    return (
        f"Runs in {folder.path} of {folder.host} cannot be seen from here: what they reached on {folder.when[:10]} is "
        f"kept. If they are gone for good: --forget {folder.path}"
    )


def _forget(store: Store, folders: Sequence[str]) -> None:
    for folder in folders:
        path = Path(folder).absolute()
        if forget(store.root, path):
            continue
        if path in {known.path for known in known_folders(store.root)}:
            raise Misconfigured(
                f"--forget {folder}: it is there; remove the runs in it that you are done with."
            )
        raise Misconfigured(
            f"--forget {folder}: {store.root} knows no such folder of runs; `elf cache gc` lists those it knows."
        )


def _plain(
    store: Store, seen: Survey, gone: Sequence[Item], spared: Sequence[tuple[Item, str]], *, deleted: bool
) -> dict[str, JSON]:
    return {
        "store": str(store.root),
        "deleted": deleted,
        "bytes": sum(item.bytes for item in gone),
        "removed": [plain_item(item) for item in gone],
        "spared": [{**plain_item(item), "kept": [why]} for item, why in spared],
        "kept": [plain_item(item) for item in seen.items if item.kept],
        "folders": [
            {"path": str(folder.path), "host": folder.host, "seen": folder.seen} for folder in seen.folders
        ],
    }
