"""Planned against actual: what each step was expected to take when it was begun, beside what it took."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from elf.cache.manifest import JSON
from elf.pipeline.forecast import read_forecast
from elf.pipeline.wording import about, about_seconds, bytes_text, seconds_text
from elf.stages.lineage import Node

AWAY = 2.0
"""Times too much or too little from which on a figure is marked; small ones never are."""
SMALL_SECONDS, SMALL_BYTES = 5, 1e6


@dataclass(frozen=True, slots=True)
class Compared:
    """One figure: what was planned and what came, as text; ``off`` where they are far apart."""

    planned: str
    actual: str
    off: bool


@dataclass(frozen=True, slots=True)
class Reckoned:
    """One step."""

    name: str
    seconds: Compared
    bytes: Compared


def reckon(nodes: Iterable[Node]) -> list[Reckoned]:
    """Every step of which a plan is kept, and their sum where there are several."""
    rows: list[Reckoned] = []
    sums = [0.0, 0.0, 0.0, 0.0]
    for node in nodes:
        forecast = read_forecast(node.folder) if node.folder is not None else None
        if forecast is None or node.manifest is None:
            continue
        figures = (
            _number(forecast.get("seconds")),
            node.manifest.provenance.seconds,
            _number(forecast.get("bytes")),
            float(node.manifest.payload_bytes),
        )
        rows.append(_row(node.name, *figures))
        sums = [whole + (part or 0) for whole, part in zip(sums, figures, strict=True)]
    if len(rows) > 1:
        rows.append(_row("all of these", *sums))
    return rows


def basis(nodes: Sequence[Node]) -> str:
    """What the planned seconds rest on, in words."""
    found = [read_forecast(node.folder) for node in nodes if node.folder is not None]
    days = {str(each.get("machine_measured") or "") for each in found if each is not None}
    known = sorted(days - {""})
    words = f"the speed of the machine as it was measured on {', '.join(known)}" if known else ""
    if "" in days:
        words += f"{' or ' if known else ''}that of the reference machine (`elf plan` measures this one)"
    return words


def _row(name: str, planned: float | None, took: float, expected: float | None, size: float) -> Reckoned:
    return Reckoned(
        name,
        Compared(about_seconds(planned), seconds_text(took), _off(planned, took, SMALL_SECONDS)),
        Compared(about(bytes_text(expected)), bytes_text(size), _off(expected, size, SMALL_BYTES)),
    )


def _off(planned: float | None, actual: float, small: float) -> bool:
    if planned is None or max(planned, actual) < small:
        return False
    return abs(math.log(max(planned, 1e-9) / max(actual, 1e-9))) > math.log(AWAY)


def _number(value: JSON) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
