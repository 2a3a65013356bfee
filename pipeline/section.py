"""Sections of a configuration, and what of them makes an artifact's key.

Everything in a section is identity unless its field is marked: ``RUNTIME`` (how fast, where, how loud) or
``LINKED`` (named here, but an input's key already stands for it).

    key = sha256 of canonical JSON {stage, version, identity(section), inputs: {role: key}}
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any, cast

from pydantic import BaseModel, ConfigDict

from elf.cache.manifest import JSON, Fingerprint


class _Mark:
    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


RUNTIME = _Mark("RUNTIME")
LINKED = _Mark("LINKED")


class Section(BaseModel):
    """Base of every configuration section: frozen, strict, unknown keys and non-finite numbers refused."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, validate_default=True
    )


def identity(section: Section, neutral: Mapping[str, JSON] | None = None) -> dict[str, JSON]:
    """What of ``section`` bears on the artifact's bytes, as plain data.

    ``neutral`` maps dotted field paths to the value at which that field leaves the identity, so that a knob
    can be added later without changing the keys of what was built before it existed.
    """
    payload = _plain(section, "", neutral or {})
    assert isinstance(payload, dict)
    return payload


def _plain(value: object, path: str, neutral: Mapping[str, JSON]) -> JSON:
    if isinstance(value, Section):
        kept: dict[str, JSON] = {}
        for name, field in type(value).model_fields.items():
            if any(isinstance(mark, _Mark) for mark in field.metadata):
                continue
            here = f"{path}.{name}" if path else name
            item = _plain(getattr(value, name), here, neutral)
            if here in neutral and item == neutral[here]:
                continue
            kept[name] = item
        return kept
    if isinstance(value, Mapping):
        items = cast("Mapping[str, object]", value)
        return {str(key): _plain(item, f"{path}.{key}", neutral) for key, item in items.items()}
    if isinstance(value, list | tuple):
        sequence = cast("tuple[object, ...]", value)
        return [_plain(item, f"{path}.{index}", neutral) for index, item in enumerate(sequence)]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(
        f"The setting {path or '(top)'} is a {type(value).__qualname__}, which has no identity: a key can only "
        "be made of plain data (numbers, text, booleans, lists, mappings). Name the thing by plain data instead."
    )


def canonical(payload: Mapping[str, Any]) -> str:
    """JSON with sorted keys and no spaces; refuses what is not plain data and numbers that are not finite."""
    return json.dumps(payload, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False)


def fingerprint(payload: Mapping[str, JSON]) -> Fingerprint:
    """The key of an artifact: sha256 of the canonical JSON of its identity payload."""
    return Fingerprint(hashlib.sha256(canonical(payload).encode()).hexdigest())


def differences(old: JSON, new: JSON, path: str = "") -> Iterator[tuple[str, JSON, JSON]]:
    """Yield ``(dotted path, old, new)`` for every leaf that differs; an absent side is the text ``(absent)``."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            below = f"{path}.{key}" if path else key
            yield from differences(old.get(key, "(absent)"), new.get(key, "(absent)"), below)
    elif old != new:
        yield path, old, new
