"""Documents out of a fetched corpus: one stream, in one order, whatever the files are.

* ``text``: a document is a file, a paragraph or a line of it, as ``source.documents`` says; a file's id is its name.
  Lines end at ``\\n``, ``\\r\\n`` or ``\\r``.
* ``jsonl``: one record per line, strict JSON in UTF-8.
* ``parquet``: one record per row, read row group by row group.

Files are read in the order of their relative names. Every record is judged by itself: what one file's first rows
look like says nothing about the rest. A column may lie inside another: ``translation.de``.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elf.pipeline.errors import Failed
from elf.stages.assets import list_files
from elf.stages.config import Source
from elf.stages.record_files import Unusable, kind_of, read_records

OTHER_SPLIT = "in the other split"
SEE_SKIPPED = (
    "Set `on_bad: error` in the data section to be told where the first skipped record is and what helps."
)
_REASONS = 3
"""Reasons that a message names."""
_SUFFIXES = {
    ".txt": "text", ".text": "text",
    ".jsonl": "jsonl", ".ndjson": "jsonl",
    ".parquet": "parquet",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Document:
    """One usable record. ``sides`` is (text,) or (source, target); ``place`` is its line or row, from 1."""

    file: str
    place: int
    id: str
    named: bool
    """Whether ``id`` was in the record; otherwise it is its position."""
    sides: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Skipped:
    """A record that was passed over, and the reason in words."""

    file: str
    place: int
    reason: str


class _NoSuchKey(Unusable):
    """The record has other keys, or the settings name another one."""

    def __init__(self, column: str, record: Mapping[str, Any], setting: str) -> None:
        there = [
            f"{name}.{inner}" if inner else name
            for name, value in record.items()
            for inner in (value if isinstance(value, dict) else ("",))
        ]
        super().__init__(f"the key '{column}' is missing", f" (there are: {', '.join(there) or 'none'})")
        self.cure = f"Name the right one (`{setting}: …` in the data section), mend the record"


@dataclass(frozen=True, slots=True)
class Corpus:
    """A fetched corpus: the folder of its files and how to read them; ``shown`` names it in messages."""

    folder: Path
    source: Source
    shown: str

    def files(self) -> list[tuple[str, Path, str]]:
        """Relative name, path and format of the files that are read, in order.

        Raises Failed where there is none.
        """
        listing = list_files(self.folder)
        usable = [(name, path, form) for name, path in listing if (form := format_of(path, self.source))]
        if not usable:
            seen = sorted({path.suffix or "(none)" for _, path in listing}) or ["(no files)"]
            raise Failed(
                f"{self.shown} holds no corpus: its files end in {', '.join(seen)}, read are {', '.join(_SUFFIXES)}. "
                "Set `format` in the data section to say what they are; compressed files must be unpacked first."
            )
        return self._fit(usable)

    def passed_over(self) -> list[str]:
        """Relative names of files whose suffix says nothing, which are not read."""
        read = {name for name, _, _ in self.files()}
        return [name for name, _ in list_files(self.folder) if name not in read]

    def documents(self) -> Iterator[Document | Skipped]:
        """All records in order, at most ``source.limit`` usable ones.

        Raises Failed naming file, line or row and key: for a record without usable text where ``on_bad`` is
        ``error``, and always for a file that cannot be read at all.
        """
        left = self.source.limit
        for name, path, form in self.files():
            for place, record in read_records(
                path, form, self.source, name=name, where=f"{self.shown}, file {name}"
            ):
                try:
                    event = self._document(name, place, record)
                except Unusable as fault:
                    if self.source.on_bad == "error":
                        raise Failed(self._complaint(name, place, form, fault)) from fault
                    event = Skipped(name, place, fault.reason)
                yield event
                if left is not None and isinstance(event, Document):
                    left -= 1
                    if not left:
                        return

    def _fit(self, files: list[tuple[str, Path, str]]) -> list[tuple[str, Path, str]]:
        plain = [name for name, _, form in files if form == "text"]
        if plain and self.source.pairs:
            raise Failed(
                f"{self.shown}, file {plain[0]} is plain text, which has no columns '{self.source.source}' and "
                f"'{self.source.target}'; bring pairs as JSON lines or parquet."
            )
        return files

    def _document(self, name: str, place: int, record: Any) -> Document:
        if isinstance(record, Unusable):
            raise record
        sides = tuple(_text(record, column, setting) for setting, column in self.source.columns)
        found = _find(record, self.source.id) if self.source.id is not None else None
        if found is None or isinstance(found, _Missing):
            return Document(name, place, f"{name}:{place}", False, sides)
        if isinstance(found, int) and not isinstance(found, bool):
            return Document(name, place, str(found), True, sides)
        try:
            return Document(name, place, _text(record, self.source.id or "", "id"), True, sides)
        except Unusable as fault:
            fault.cure = "Set `id: null` to call documents by their places, mend the record"
            raise

    def _complaint(self, name: str, place: int, form: str, fault: Unusable) -> str:
        unit = {"jsonl": "line", "parquet": "row", "text": "line"}[form]
        return (
            f"{self.shown}, file {name}, {unit} {place}: {fault}. {fault.cure}, or set `on_bad: skip` in the "
            "data section to leave such records out and count them."
        )


def format_of(path: Path, source: Source) -> str:
    """Of a file of the corpus, as it is set or as its suffix has it; empty where that says nothing."""
    return _SUFFIXES.get(path.suffix.lower(), "") if source.format == "auto" else source.format


def chosen(document: Document, split: str, holdout: float, share: float = 1.0) -> bool:
    """Whether a document is among the ``share`` that is read and belongs to ``split`` when a share ``holdout`` of
    all goes to validation.

    Decided by the sha256 of its text (of the source side, for pairs), so that equal texts share a split.
    """
    digest = hashlib.sha256(document.sides[0].encode()).digest()
    if int.from_bytes(digest[8:16], "big") >= share * 2.0**64:
        return False
    if not holdout:
        return True
    held_out = int.from_bytes(digest[:8], "big") < holdout * 2.0**64
    return held_out == (split != "train")


def describe_corpus(config: Mapping[str, Any]) -> str:
    """How to name a fetched corpus in messages, from its fetch settings: the local path or the URI."""
    return str(config.get("location") or config.get("source") or "The corpus")


def describe_skipped(reasons: Counter[str]) -> str:
    """How many records were skipped and why, the commonest reasons first: for the middle of a message."""
    ordered = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
    named = ", ".join(f"{reason}: {count:,}" for reason, count in ordered[:_REASONS])
    more = ", …" if len(ordered) > _REASONS else ""
    return f"{reasons.total():,} records skipped" + (f" ({named}{more})" if named else "")


class _Missing:
    """No such key."""


_MISSING = _Missing()


def _find(record: Mapping[str, Any], column: str) -> Any:
    if column in record:
        return record[column]
    head, dot, rest = column.partition(".")
    inner = record.get(head, _MISSING)
    if dot and inner is None:
        return None
    return _find(inner, rest) if dot and isinstance(inner, dict) else _MISSING


def _text(record: Mapping[str, Any], column: str, setting: str) -> str:
    value = _find(record, column)
    if isinstance(value, _Missing):
        raise _NoSuchKey(column, record, setting)
    if value is None:
        raise Unusable(f"the key '{column}' is null", ", where text belongs")
    if not isinstance(value, str):
        raise Unusable(f"the key '{column}' is {kind_of(value)}", f" ({value!r:.40}), where text belongs")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise Unusable(
            f"the key '{column}' holds half a surrogate pair", f" at character {error.start}"
        ) from error
    return value
