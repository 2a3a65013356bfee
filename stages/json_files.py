"""JSON that a stage left in its artifact: what cannot be read is named, with what helps."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from elf.cache.errors import AGAIN, Damaged


def read_json(path: Path) -> Any:
    """What the file holds. Raises Damaged where it is missing or no JSON."""
    return _parsed(path, _text(path))


def read_json_lines(path: Path) -> list[Any]:
    """What its lines hold, empty ones left out. Raises Damaged, naming the line."""
    lines = enumerate(_text(path).split("\n"), 1)
    return [_parsed(f"{path}, line {number},", line) for number, line in lines if line]


def stream_json_lines(path: Path) -> Iterator[Any]:
    """The same one by one, for a file that may be long."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                yield _parsed(f"{path}, line {number},", line)
    except OSError as error:
        raise _unreadable(path, error) from error


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> Damaged:
    return Damaged(f"{path} cannot be read: {error}. {AGAIN}")


def _parsed(where: object, text: str | bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise Damaged(f"{where} is damaged: {error}. {AGAIN}") from error
