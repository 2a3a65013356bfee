"""`samples.jsonl`: the texts of a run, whoever made them, one JSON object a line, sorted by (seed, id).

    {"id": 3, "seed": 0, "text": "…", "ids": [71, 423, …]}      + "reference" and "source" for pairs

`ids` are ids of the run's own tokenizer up to, not including, the first end mark. Texts from elsewhere may lack
`ids` and `seed`. An id is a number or a text and occurs once per seed: everything joins by (seed, id).
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from elf.cache.files import write_atomic
from elf.pipeline.errors import Failed

if TYPE_CHECKING:
    from pathlib import Path

SAMPLES = "samples.jsonl"
SETTINGS = "settings.json"
GLIMPSES = "samples"
"""Folder in the ``aux`` of a training run: texts sampled as it went, ``step_<n>.jsonl`` each time."""
_LINE_END = re.compile(r"\r\n|\n|\r")
_FIELDS = {"id", "seed", "text", "ids", "reference", "source"}


@dataclass(frozen=True, slots=True)
class Text:
    """One text. `ids` is None where the text did not come from a tokenizer of ours."""

    id: int | str
    seed: int
    text: str
    ids: tuple[int, ...] | None = None
    reference: str | None = None
    source: str | None = None

    @property
    def empty(self) -> bool:
        """Whether there is nothing to read: no character but white space."""
        return not self.text.strip()


def to_record(text: Text) -> dict[str, Any]:
    """The JSON object of one line; absent fields are left out."""
    record: dict[str, Any] = {"id": text.id, "seed": text.seed, "text": text.text}
    if text.ids is not None:
        record["ids"] = list(text.ids)
    if text.reference is not None:
        record["reference"] = text.reference
    if text.source is not None:
        record["source"] = text.source
    return record


def write_texts(path: "Path", texts: Iterable[Text]) -> None:
    """Write the file whole or not at all, in the order (seed, id)."""
    ordered = sorted(texts, key=place)
    lines = [json.dumps(to_record(text), ensure_ascii=False, sort_keys=True) + "\n" for text in ordered]
    write_atomic(path, "".join(lines))


def place(text: Text) -> tuple[int, bool, int, str]:
    """Sort key: by seed, then numbers by size, then names by spelling."""
    named = isinstance(text.id, str)
    return (text.seed, named, 0 if isinstance(text.id, str) else text.id, str(text.id) if named else "")


def read_texts(path: "Path") -> tuple[Text, ...]:
    """Read the file, in order (seed, id). Raises Failed naming file, line and key where a line is not a text."""
    lines = read_lines(path)
    texts = [_parse(line, path, number) for number, line in enumerate(lines, 1) if line.strip()]
    if not texts:
        raise Failed(f"{path} holds no text at all, so there is nothing to score; name a file that does.")
    seen: set[tuple[int, int | str]] = set()
    for text in texts:
        if (text.seed, text.id) in seen:
            raise Failed(
                f"{path} holds id {text.id!r} of seed {text.seed} twice; give each text of a seed an id of its own."
            )
        seen.add((text.seed, text.id))
    return tuple(sorted(texts, key=place))


def read_lines(path: "Path") -> list[str]:
    """The lines of a text file, what stands after the last line end too; a byte order mark is no part of the first.
    They end at ``\\n``, ``\\r\\n`` or ``\\r``, and nowhere else.

    Raises Failed where it is not there, not to be read or not UTF-8.
    """
    try:
        return _LINE_END.split(path.read_bytes().decode("utf-8-sig"))
    except FileNotFoundError:
        raise Failed(f"There is no {path}; give the file that holds the texts.") from None
    except OSError as error:
        raise Failed(f"{path} cannot be read: {error.strerror}. Name a file of texts.") from error
    except UnicodeDecodeError as error:
        raise Failed(f"{path} is not UTF-8 text ({error}); save it as UTF-8.") from error


def _parse(line: str, path: "Path", number: int) -> Text:
    where = f"{path}, line {number}"
    try:
        record = json.loads(line, object_pairs_hook=_unique)
    except ValueError as error:
        raise Failed(f"{where}: this is not JSON ({error}); every line must be one object.") from error
    except RecursionError:
        raise Failed(f"{where}: this is nested too deeply; every line must be one flat object.") from None
    if not isinstance(record, dict):
        raise Failed(f"{where}: this is a {type(record).__name__}; every line must be one object.")
    if unknown := sorted(record.keys() - _FIELDS):
        raise Failed(
            f"{where}: unknown key '{unknown[0]}'; leave it out, or take one of {', '.join(sorted(_FIELDS))}."
        )
    text = _field(record, "text", where, str)
    name = _field(record, "id", where, int, str)
    seed = _field(record, "seed", where, int) if "seed" in record else 0
    return Text(
        id=name,
        seed=seed,
        text=text,
        ids=_ids(record, where),
        reference=_field(record, "reference", where, str) if "reference" in record else None,
        source=_field(record, "source", where, str) if "source" in record else None,
    )


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) < len(pairs):
        raise ValueError("a key stands twice in one object")
    return record


def _field(record: Mapping[str, Any], key: str, where: str, *kinds: type) -> Any:
    if key not in record:
        raise Failed(f"{where}: the key '{key}' is missing; give each text at least 'id' and 'text'.")
    if type(record[key]) not in kinds:
        wanted = " or ".join(kind.__name__ for kind in kinds)
        raise Failed(f"{where}: '{key}' is {record[key]!r:.60}; it must be {wanted}.")
    if isinstance(record[key], str) and any("\ud800" <= letter <= "\udfff" for letter in record[key]):
        raise Failed(
            f"{where}: '{key}' holds half a surrogate pair, which is no text; write the whole character."
        )
    return record[key]


def _ids(record: Mapping[str, Any], where: str) -> tuple[int, ...] | None:
    if "ids" not in record:
        return None
    ids = record["ids"]
    if not isinstance(ids, list) or not all(type(item) is int for item in ids):
        raise Failed(f"{where}: 'ids' is {ids!r:.60}; it must be a list of whole numbers.")
    return tuple(ids)
