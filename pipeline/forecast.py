"""What a step was expected to cost when it was begun, kept beside what it made, so that the two can be compared.

``aux/planned.json``: no part of any key or content, and to this package no more than plain data.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from elf.cache.files import write_atomic
from elf.cache.manifest import JSON

FILE = Path("aux", "planned.json")


def keep_forecast(folder: Path, forecast: Mapping[str, JSON]) -> None:
    """Write it into a folder whose ``aux`` is there; one of an earlier try is replaced."""
    if forecast:
        write_atomic(folder / FILE, json.dumps(forecast, allow_nan=False) + "\n")


def read_forecast(folder: Path) -> Mapping[str, JSON] | None:
    """What was expected of the artifact in ``folder``; None where nobody kept it."""
    try:
        found: Any = json.loads((folder / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return cast("Mapping[str, JSON]", found) if isinstance(found, dict) else None
