"""``elf cache ls``, ``du`` and ``show``: they look and change nothing."""

import json
import time
from collections.abc import Mapping

import yaml
from rich.console import Console

from elf.cache.collecting import Item, Survey, survey
from elf.cache.files import free_bytes
from elf.cache.manifest import JSON, Manifest, short
from elf.cache.store import Store
from elf.flows.cache_tables import (
    count_kinds,
    give_way,
    keepers,
    make_table,
    parse_duration,
    plain_item,
    relative,
    rows_text,
    run_name,
)
from elf.flows.request import RUNS, open_store
from elf.flows.terminal import make_console
from elf.pipeline.errors import Failed
from elf.pipeline.finding import find_artifact
from elf.pipeline.wording import age_text, bytes_text, count_of, seconds_text, size_of

FILES = 8
"""Files of an artifact that are listed, the largest first."""
LINES = 40
"""Lines of settings or facts that are shown; --json has all."""


def list_artifacts(stage: str | None, store: str | None, *, as_json: bool) -> None:
    """One line per artifact, by stage, the last used first. Raises Failed for a stage of which there is none."""
    opened = open_store(store)
    seen = look(opened)
    found = [item for item in seen.items if item.kind == "artifact" and stage in (None, item.place[0])]
    if stage is not None and not found:
        stages = ", ".join(sorted({item.place[0] for item in seen.items if item.kind == "artifact"}))
        raise Failed(
            f"There is no artifact of stage '{stage}' in {opened.root}; there are: {stages or 'none'}."
        )
    found.sort(key=lambda item: (item.place[0], -item.used))
    if as_json:
        print(json.dumps([plain_item(item) for item in found], indent=1))
        return
    out = make_console()
    if not found:
        out.print(f"Nothing in {opened.root} yet: `elf run quickstart` fills it.", highlight=False)
        return
    table = make_table(("stage", "key"), ("rows", "bytes", "used"), "kept by")
    now = time.time()
    for item in found:
        age = age_text(max(now - item.used, 0.0))
        table.add_row(
            item.place[0],
            f"[dim]{short(item.place[1])}[/]",
            rows_text(item),
            bytes_text(item.bytes),
            age if age == "now" else f"{age} ago",
            keepers(item.kept),
        )
    give_way(table, out.width)
    out.print(table)
    out.print()
    total = bytes_text(sum(item.bytes for item in found))
    where = relative(opened.root)
    out.print(f"{count_of(len(found), 'artifact')}, {total} in {where}.", highlight=False, soft_wrap=True)


def show_usage(grace: str, store: str | None, *, as_json: bool) -> None:
    """Bytes per stage, of what is unfinished or left over, and what a collection would free."""
    opened, seconds = open_store(store), parse_duration(grace)
    seen = survey(opened, grace=seconds, runs=(RUNS,))
    groups = _groups(seen)
    going = seen.removable
    freed, free = sum(item.bytes for item in going), free_bytes(opened.root)
    if as_json:
        plain = {
            "store": str(opened.root),
            "stages": {name: {"count": count, "bytes": size} for name, (count, size) in groups.items()},
            "bytes": sum(item.bytes for item in seen.items),
            "bytes_gc_frees": freed,
            "bytes_free": free,
        }
        print(json.dumps(plain, indent=1))
        return
    out = make_console()
    table = make_table(("stage",), ("number", "bytes"))
    for name, (count, size) in groups.items():
        table.add_row(name, f"{count:,}", bytes_text(size))
    table.add_row(
        "[bold]total[/]", f"{len(seen.items):,}", bytes_text(sum(item.bytes for item in seen.items))
    )
    out.print(table)
    out.print()
    out.print(
        f"{bytes_text(free)} free on the disk of {relative(opened.root)}.", highlight=False, soft_wrap=True
    )
    words = (
        f"`elf cache gc` would free {bytes_text(freed)}: {count_kinds(going)}."
        if going
        else "Nothing to collect."
    )
    out.print(words, highlight=False, soft_wrap=True)


def show_artifact(key: str, store: str | None, *, as_json: bool) -> None:
    """One artifact as its manifest tells it. Raises Failed, Misconfigured or Damaged where there is none such."""
    opened = open_store(store)
    artifact = find_artifact(key, opened, RUNS)
    manifest = artifact.manifest
    (item,) = (
        each for each in look(opened).items if each.kind == "artifact" and each.place == manifest.place
    )
    if as_json:
        print(json.dumps({**plain_item(item), "manifest": json.loads(manifest.to_json())}, indent=1))
        return
    out = make_console()
    made = manifest.provenance
    commit = "" if made.git is None else f", commit {made.git[:7]}{'+' if made.dirty else ''}"
    _say(out, f"{manifest.stage} {manifest.fingerprint}", style="bold")
    _say(out, f"in {relative(artifact.path)}")
    _say(
        out,
        f"built {made.started[:16].replace('T', ' ')} UTC on {made.host} in {seconds_text(made.seconds)}{commit}",
    )
    _say(out, f"by {' '.join(made.argv)}", style="dim")
    _say(out, f"content {manifest.content}", style="dim")
    _say_section(out, "inputs", _inputs(opened, manifest))
    _say_section(out, "settings", _yaml(manifest.config))
    _say_section(out, "facts", _yaml(manifest.facts))
    files = sorted(manifest.files.items(), key=lambda entry: (-entry[1].bytes, entry[0]))
    listed = [f"{bytes_text(record.bytes):>8}  {name}" for name, record in files[:FILES]]
    more = [f"          and {len(files) - FILES:,} more"] if len(files) > FILES else []
    _say_section(out, f"files ({len(files):,}, {bytes_text(size_of(artifact))})", [*listed, *more])
    _say_section(out, "kept by", _kept(item))


def look(store: Store) -> Survey:
    """Everything in a store, with what keeps it whatever its age."""
    return survey(store, grace=0.0, runs=(RUNS,))


def _say(out: Console, line: str = "", *, style: str = "") -> None:
    out.print(line, style=style, highlight=False, markup=False, soft_wrap=True)


def _say_section(out: Console, title: str, lines: list[str]) -> None:
    _say(out)
    _say(out, title, style="bold")
    for line in lines or ["–"]:
        _say(out, f"  {line}")


def _inputs(store: Store, manifest: Manifest) -> list[str]:
    lines: list[str] = []
    for role, key in sorted(manifest.inputs.items()):
        there = sorted(path.parent.name for path in store.root.glob(f"[a-z]*/{key}"))
        lines.append(
            f"{role}: {there[0]} {short(key)}" if there else f"{role}: {short(key)} (not in this store)"
        )
    return lines


def _yaml(plain: Mapping[str, JSON]) -> list[str]:
    if not plain:
        return []
    text = yaml.safe_dump(json.loads(json.dumps(plain)), sort_keys=False, allow_unicode=True, width=100)
    lines = text.rstrip().splitlines()
    return (
        lines
        if len(lines) <= LINES
        else [*lines[:LINES], f"… {len(lines) - LINES} more lines; --json has all"]
    )


def _kept(item: Item) -> list[str]:
    """Every pin, run and user; an age only where there is nothing else."""
    lines = [
        run_name(reason) if reason.why == "run" else reason.words
        for reason in item.kept
        if reason.why != "age"
    ]
    return list(dict.fromkeys(lines)) or ["nothing: gc removes it once it was not used for its grace period"]


def _groups(seen: Survey) -> dict[str, tuple[int, int]]:
    """Number and bytes by stage, and of what is no artifact."""
    groups: dict[str, list[Item]] = {}
    for item in sorted(seen.items, key=lambda item: item.place[0]):
        if item.kind == "artifact":
            groups.setdefault(item.place[0], []).append(item)
    for kind, title in (("unfinished", "unfinished builds"), ("leftover", "leftovers")):
        if others := [item for item in seen.items if item.kind == kind]:
            groups[title] = others
    return {name: (len(items), sum(item.bytes for item in items)) for name, items in groups.items()}
