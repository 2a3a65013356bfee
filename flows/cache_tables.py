"""How ``elf cache`` words and tabulates what lies in a store."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from elf.cache.collecting import Item, Reason
from elf.cache.manifest import JSON, short
from elf.flows.request import RUNS
from elf.pipeline.errors import Misconfigured
from elf.pipeline.wording import DASH, count_of

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def make_table(left: Sequence[str], right: Sequence[str], last: str = "") -> Table:
    """A bare table: columns to the left, columns of numbers, and one that gives way where there is no room."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for header in left:
        table.add_column(header, no_wrap=True)
    for header in right:
        table.add_column(header, no_wrap=True, justify="right")
    if last:
        table.add_column(last, no_wrap=True, overflow="ellipsis")
    return table


def give_way(table: Table, width: int) -> None:
    """Have the last column alone be cut where a table is too wide for ``width`` columns, never a number's unit."""
    *whole, last = table.columns
    taken = sum(
        max(cell_len(str(column.header)), *(Text.from_markup(str(cell)).cell_len for cell in column.cells))
        + 2
        for column in whole
    )
    last.max_width = max(width - taken, cell_len(str(last.header)))


def parse_duration(text: str) -> float:
    """Seconds in ``7d``, ``12h``, ``30m``, ``90s`` or ``0``. Raises Misconfigured for anything else."""
    number, unit = (text[:-1], text[-1]) if text[-1:] in _UNITS else (text, "d" if text == "0" else "")
    try:
        seconds = float(number) * _UNITS[unit]
    except (ValueError, KeyError):
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise Misconfigured(f"--grace {text} is no length of time; give for example 7d, 12h, 30m or 0.")
    return seconds


def name_of(item: Item) -> str:
    """``encode 12 digits``, or what else it is."""
    stage, key = item.place
    if item.kind == "artifact":
        return f"{stage} {short(key)}"
    return f"{item.kind} {stage} {short(key)}".rstrip()


def keepers(reasons: Iterable[Reason]) -> str:
    """What keeps an artifact, the strongest first, in a few words; recent use shows in another column."""
    words: list[str] = []
    if any(reason.why == "pin" for reason in reasons):
        words.append("pin")
    runs = sorted((run_name(reason) for reason in reasons if reason.why == "run"), key=len)
    if runs:
        words.append(runs[0] + (f" +{len(runs) - 1}" if len(runs) > 1 else ""))
    if not words:
        others = [reason.words for reason in reasons if reason.why in ("build", "input")]
        words += ["in use"] if any(reason.why == "use" for reason in reasons) else others[:1]
    return ", ".join(words)


def run_name(reason: Reason) -> str:
    """The link of a run: below ``./runs`` by its name, elsewhere by its path."""
    path = Path(reason.words)
    here = RUNS.absolute()
    return path.relative_to(here).as_posix() if path.is_relative_to(here) else reason.words


def summarise_kept(items: Iterable[Item]) -> str:
    """``1 pinned, 15 reached by runs, 2 used lately``: each counted once, by its strongest reason."""
    words: Mapping[str, str] = {
        "pin": "pinned", "run": "reached by runs", "use": "in use", "build": "needed by unfinished builds",
        "age": "used lately", "input": "that those were made from",
    }  # fmt: skip
    counts = dict.fromkeys(words, 0)
    for item in items:
        if item.kind == "artifact" and item.kept:
            whys = {reason.why for reason in item.kept}
            counts[next(why for why in words if why in whys)] += 1
    return ", ".join(f"{count:,} {words[why]}" for why, count in counts.items() if count) or "nothing"


def count_kinds(items: Sequence[Item]) -> str:
    """``3 artifacts, 1 unfinished build, 2 leftovers``."""
    nouns = {"artifact": "artifact", "unfinished": "unfinished build", "leftover": "leftover"}
    counts = {kind: sum(item.kind == kind for item in items) for kind in nouns}
    told = [count_of(count, nouns[kind]) for kind, count in counts.items() if count]
    return ", ".join(told) or "nothing"


def rows_text(item: Item) -> str:
    """Rows, or texts, that its manifest says it holds."""
    if item.manifest is None:
        return "damaged" if item.kind == "artifact" else DASH
    count = rows_in(item.manifest.facts)
    return DASH if count is None else f"{count:,}"


def rows_in(facts: Mapping[str, JSON]) -> int | None:
    """Rows, or texts, that facts tell of."""
    for name in ("rows", "texts"):
        count = facts.get(name)
        if isinstance(count, int) and not isinstance(count, bool):
            return count
    return None


def plain_item(item: Item) -> dict[str, JSON]:
    """As JSON."""
    return {
        "kind": item.kind,
        "stage": item.place[0],
        "key": item.place[1],
        "path": str(item.path),
        "bytes": item.bytes,
        "rows": None if item.manifest is None else rows_in(item.manifest.facts),
        "damaged": item.kind == "artifact" and item.manifest is None,
        "used": datetime.fromtimestamp(item.used, UTC).isoformat(timespec="seconds"),
        "pinned": any(reason.why == "pin" for reason in item.kept),
        "runs": sorted(run_name(reason) for reason in item.kept if reason.why == "run"),
        "kept": [reason.words for reason in item.kept],
    }


def relative(path: Path) -> str:
    """``path`` from here where it lies below."""
    here = Path.cwd()
    return f"./{path.relative_to(here)}" if path.is_relative_to(here) else str(path)
