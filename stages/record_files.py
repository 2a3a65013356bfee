"""Records out of one file, each judged by itself: plain text, JSON lines or Parquet.

Lines end as ``elf.stages.plain_text`` has it. A compressed file is none of the three, whatever the settings call it.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from elf.pipeline.errors import Failed
from elf.stages.config import Source
from elf.stages.plain_text import LINE_END, divide, lines_of

_KINDS = {bool: "true or false", int: "a number", float: "a number", list: "a list", dict: "an object"}
_PACKED = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "Zstandard",
    b"\xfd7zXZ\x00": "xz",
    b"BZh": "bzip2",
    b"PK\x03\x04": "zip",
}
"""How compressed files begin."""


class Unusable(Exception):
    """Why a record cannot be used; ``reason`` is the short form that is counted."""

    cure = "Mend the record"

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}{detail}")
        self.reason = reason


def kind_of(value: object) -> str:
    """What JSON calls a value that is no text, in words."""
    return _KINDS.get(type(value), f"a {type(value).__name__}")


def read_records(
    path: Path, form: str, source: Source, *, name: str, where: str
) -> Iterator[tuple[int, Any]]:
    """Line or row, from 1, and each record of a file by the format ``form``: a mapping, or Unusable.

    ``name`` stands for the id of a text file, ``where`` for the file in messages. Raises Failed for a file that cannot
    be read at all.
    """
    _refuse_packed(path, form, where)
    if form == "text":
        return _read_text(source, name, path)
    return _read_jsonl(path) if form == "jsonl" else _read_parquet(source, where, path)


def _refuse_packed(path: Path, form: str, where: str) -> None:
    with path.open("rb") as stream:
        head = stream.read(10)
    for mark, name in _PACKED.items():
        if head.startswith(mark) and (mark != b"BZh" or head[4:] == b"1AY&SY"):
            raise Failed(
                f"{where} is compressed ({name}), and is to be read as {form}; compressed files are not. Bring it "
                "unpacked."
            )


def _read_text(source: Source, name: str, path: Path) -> Iterator[tuple[int, Any]]:
    unit = source.documents
    for place, raw in divide(path, unit):
        try:
            text = raw.decode()
        except UnicodeDecodeError as error:
            line = place + len(LINE_END.findall(raw[: error.start]))
            within = "" if unit == "file" else f" of the {unit}"
            yield (
                line,
                Unusable("not UTF-8", f" (byte {raw[error.start]:#04x} at offset {error.start}{within})"),
            )
            continue
        names = {column: text for _, column in source.columns}
        yield place, {**names, source.id or "id": name} if unit == "file" else names


def _read_jsonl(path: Path) -> Iterator[tuple[int, Any]]:
    for place, raw in lines_of(path):
        if raw.strip():
            yield place, _record(raw)


def _record(raw: bytes) -> Any:
    try:
        record = json.loads(raw.decode(), parse_constant=_refuse_constant, object_pairs_hook=_unique)
    except UnicodeDecodeError as error:
        return Unusable("not UTF-8", f" (byte {raw[error.start]:#04x} at offset {error.start} of the line)")
    except ValueError as error:
        if not raw.endswith((b"\n", b"\r")):
            return Unusable("the last line is cut off", f": it has no line end and is not JSON ({error})")
        return Unusable("not JSON", f" ({error})")
    except RecursionError:
        return Unusable("not JSON", " (nested too deeply)")
    if not isinstance(record, dict):
        return Unusable("not an object", f" but {kind_of(record)}")
    return record


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) != len(pairs):
        raise ValueError("a key stands twice in one object")
    return record


def _read_parquet(source: Source, where: str, path: Path) -> Iterator[tuple[int, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            columns = _parquet_columns(file, source, where)
            place = 0
            for batch in file.iter_batches(batch_size=1024, columns=columns):
                for record in _records(batch):
                    place += 1
                    yield place, record
    except (
        pa.ArrowInvalid,
        pa.ArrowNotImplementedError,
        OSError,
    ) as error:  # cut, foreign, or a codec unknown
        raise Failed(
            f"{where} is no whole parquet file ({error}); fetch it again or leave it out."
        ) from error


def _records(batch: Any) -> list[Any]:
    """Rows of a batch; where a text of it is not UTF-8, that row alone is unusable."""
    try:
        return batch.to_pylist()
    except UnicodeDecodeError as error:
        if batch.num_rows == 1:
            byte = error.object[error.start]
            return [Unusable("not UTF-8", f" (byte {byte:#04x} at offset {error.start} of a text)")]
        return [record for row in range(batch.num_rows) for record in _records(batch.slice(row, 1))]


def _parquet_columns(file: Any, source: Source, where: str) -> list[str]:
    schema = file.schema_arrow
    top = schema.names
    if not file.metadata.num_rows:
        raise Failed(f"{where} has 0 rows; leave it out or bring the whole file.")
    for setting, column in source.columns:
        if column not in top and column.split(".")[0] not in top:
            raise Failed(
                f"{where} has no column '{column}'; its columns are {', '.join(top)}. Name the right one "
                f"(`{setting}: …` in the data section)."
            )
    twice = [name for name in dict.fromkeys(top) if top.count(name) > 1]
    if twice:
        raise Failed(f"{where} has the column '{twice[0]}' twice. Rename one of them, or leave it out.")
    wanted = [
        *(column for _, column in source.columns),
        *([source.id] if source.id else []),
    ]
    return [column for column in dict.fromkeys(wanted) if column in top or column.split(".")[0] in top]
