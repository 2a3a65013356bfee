"""How much a corpus holds, told without reading it: by Parquet's footers, by the beginnings of JSON lines, by the sizes
of plain text. For planning only: what cannot be told is None, and whoever reads the files will say why."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from elf.pipeline.errors import Misconfigured
from elf.stages.assets import list_files
from elf.stages.config import Source
from elf.stages.documents import format_of

FILES, BEGINNING = 16, 2**20
"""Files that are looked at of many, from all over them; bytes that are read of one."""


@dataclass(frozen=True, slots=True)
class Held:
    """Records, and bytes of the text in them."""

    records: float
    text: float


def glance(path: Path, source: Source) -> Held | None:
    """What a file, or all files of a folder, hold, from a few of them; ``limit`` and ``share`` are not counted."""
    columns = {column for _, column in source.columns}
    try:
        listed = [path] if path.is_file() else [file for _, file in list_files(path)]
        read = [(file, form) for file in listed if (form := format_of(file, source))]
        chosen = read[:: -(-len(read) // FILES) or 1]
        parts = [_GLANCES[form](file, columns) for file, form in chosen]
        size, seen = (sum(file.stat().st_size for file, _ in files) for files in (read, chosen))
    except (OSError, ValueError, Misconfigured):
        return None
    if not seen:
        return None
    return Held(*(sum(numbers) * size / seen for numbers in zip(*parts, strict=True)))


def _parquet(path: Path, columns: Collection[str]) -> tuple[float, float]:
    from pyarrow import parquet

    footer = parquet.read_metadata(path)
    groups = map(footer.row_group, range(footer.num_row_groups))
    parts = (group.column(number) for group in groups for number in range(group.num_columns))
    return footer.num_rows, sum(
        part.total_uncompressed_size for part in parts if part.path_in_schema in columns
    )


def _json_lines(path: Path, columns: Collection[str]) -> tuple[float, float]:
    size = path.stat().st_size
    with path.open("rb") as file:
        beginning = file.read(BEGINNING)
    return beginning.count(b"\n") * size / max(1, len(beginning)), size


def _text(path: Path, columns: Collection[str]) -> tuple[float, float]:
    return 1, path.stat().st_size


_GLANCES: Mapping[str, Callable[[Path, Collection[str]], tuple[float, float]]] = {
    "parquet": _parquet,
    "jsonl": _json_lines,
    "text": _text,
}
