"""How much a corpus holds, told by the beginnings of a few of its files and, of Parquet, their footers.

For planning only: what cannot be told is None, and whoever reads the files will say why.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elf.pipeline.errors import Misconfigured
from elf.stages.assets import list_files
from elf.stages.config import Source
from elf.stages.documents import format_of
from elf.stages.plain_text import BLANK_LINES, LINE_END

FILES = 16
"""Files that are looked at of many, from all over them."""
BEGINNING, RECORDS = 2**20, 1000
"""Bytes, and records of Parquet, that are read of one."""


@dataclass(frozen=True, slots=True)
class Held:
    """Records, and bytes of the text in them."""

    records: float
    text: float


def glance(path: Path, source: Source) -> Held | None:
    """What is read of a file, or of all files of a folder; ``share`` is not counted."""
    try:
        listed = [path] if path.is_file() else [file for _, file in list_files(path)]
        read = [(file, form) for file in listed if (form := format_of(file, source))]
        chosen = read[:: -(-len(read) // FILES) or 1]
        parts = [_GLANCES[form](file, source) for file, form in chosen]
        size, seen = (sum(file.stat().st_size for file, _ in files) for files in (read, chosen))
    except (OSError, ValueError, NotImplementedError, Misconfigured):  # a guess stops no plan
        return None
    records, text = (sum(numbers) for numbers in zip(*parts, strict=True)) if parts else (0.0, 0.0)
    if not (records and text):
        return None
    whole = size / seen
    kept = 1.0 if source.limit is None else min(1.0, source.limit / (records * whole))
    return Held(records * whole * kept, text * whole * kept)


def _parquet(path: Path, source: Source) -> tuple[float, float]:
    """By the mean length of the first texts, since the sizes in the footer tell nothing of repeated ones."""
    from pyarrow import compute, parquet

    kernels: Any = compute  # its functions are made as it is imported
    with parquet.ParquetFile(path) as file:
        names = file.schema_arrow.names
        places = [[column] if column in names else column.split(".") for _, column in source.columns]
        first = next(file.iter_batches(RECORDS, columns=[place[0] for place in places]), None)
        if not first:
            return 0, 0
        texts = [kernels.struct_field(first.to_struct_array(), place) for place in places]
        length = sum(kernels.sum(kernels.binary_length(each)).as_py() or 0 for each in texts) / len(first)
        return file.metadata.num_rows, length * file.metadata.num_rows


def _json_lines(path: Path, source: Source) -> tuple[float, float]:
    return _units(path, LINE_END), path.stat().st_size


def _text(path: Path, source: Source) -> tuple[float, float]:
    ends = {"line": LINE_END, "paragraph": BLANK_LINES}
    records = _units(path, ends[source.documents]) if source.documents in ends else 1
    return records, path.stat().st_size


def _units(path: Path, end: re.Pattern[bytes]) -> float:
    """What the ends divide a file into, by those in its beginning; at least one."""
    with path.open("rb") as file:
        beginning = file.read(BEGINNING)
    if len(beginning) < BEGINNING:
        return sum(bool(part.strip()) for part in end.split(beginning))
    return max(1, len(end.findall(beginning))) * path.stat().st_size / len(beginning)


_GLANCES: Mapping[str, Callable[[Path, Source], tuple[float, float]]] = {
    "parquet": _parquet,
    "jsonl": _json_lines,
    "text": _text,
}
