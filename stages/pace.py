"""How fast a training run goes: tokens a second, and the share of the device's measured rate of products (MFU).

A step's operations are those of the model (``elf.stages.model.flops.step_flops``: trunk, attention, heads, forward and
backward, on average over the draws); the optimiser, an encoder beside the step and blocks computed twice are no part of
them, so that two ways of running one training can be compared. Light: no torch here.
"""

import json
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elf.pipeline.wording import amount_text

METRICS = "metrics.jsonl"
TIMING = "timing.jsonl"
RECENT = 20
"""Steps that what is shown is the mean of."""


@dataclass(frozen=True, slots=True)
class Effort:
    """What one step is: ``tokens`` and ``flops`` over all processes; ``peak``, operations a second in products, all
    devices together."""

    tokens: int
    flops: float
    peak: float

    def mfu(self, seconds: float) -> float:
        """Of a step that took so long."""
        return self.flops / seconds / self.peak

    def line(self, seconds: float) -> dict[str, float]:
        """Of one step, as ``timing.jsonl`` has it."""
        return {"tokens_per_s": round(self.tokens / seconds, 1), "mfu": round(self.mfu(seconds), 5)}


class Pacer:
    """What is shown of the speed while a run goes: the mean of its last steps."""

    def __init__(self, effort: Effort) -> None:
        self.effort = effort
        self._recent: deque[float] = deque(maxlen=RECENT)

    def add(self, seconds: float) -> dict[str, str]:
        """Another step took so long; figures for a bar."""
        self._recent.append(seconds)
        mean = sum(self._recent) / len(self._recent)
        return {
            "tok/s": amount_text(round(self.effort.tokens / mean)),
            "mfu": percent(self.effort.mfu(mean)),
        }


@dataclass(frozen=True, slots=True)
class Pace:
    """A run's mean speed, and what share of its time went by ``waiting`` for rows and ``beside`` the steps: held-out
    measurements, samples, saving."""

    tokens_per_s: float
    mfu: float
    waiting: float
    beside: float

    def __str__(self) -> str:
        speed = f"{amount_text(round(self.tokens_per_s))} tokens/s, MFU {percent(self.mfu)}"
        rest = (
            f"{percent(self.waiting)} of the time waiting for rows, {percent(self.beside)} beside the steps"
        )
        return f"{speed}; {rest}"


def read_pace(aux: Path) -> Pace | None:
    """The mean over the steps in ``aux/timing.jsonl``, each as it was made last; None where nothing is told."""
    steps = {line["step"]: line for line in _lines(aux / TIMING) if "mfu" in line}
    seconds = sum(line["seconds"] for line in steps.values())
    if not seconds:
        return None
    beside = sum(line["beside"] for line in steps.values())

    def mean(name: str) -> float:
        return sum(line[name] * line["seconds"] for line in steps.values()) / seconds

    waited = sum(line["waited"] for line in steps.values())
    return Pace(mean("tokens_per_s"), mean("mfu"), waited / (seconds + beside), beside / (seconds + beside))


def last_step(aux: Path) -> int:
    """The last step that ``aux/timing.jsonl`` tells of; −1 if none."""
    return max((line["step"] for line in _lines(aux / TIMING)), default=-1)


def flops_text(number: float) -> str:
    """``0.277 GFLOP``, ``389 TFLOP``, ``41.2 EFLOP``."""
    sizes = ((999.5e15, "E"), (1e15, "P"), (1e12, "T"), (0.0, "G"))
    size, unit = next((size, unit) for size, unit in sizes if number >= size)
    size = 1e18 if unit == "E" else size
    return f"{number / (size or 1e9):.3g} {unit}FLOP"


def percent(share: float) -> str:
    """``31 %``, ``0.4 %``."""
    return f"{100 * share:.0f} %" if share >= 0.0995 else f"{100 * share:.1f} %"


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """Those that are whole: a run that was killed may have left half of one."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    for line in text.splitlines():
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if isinstance(found, dict) and "step" in found:
            yield found
