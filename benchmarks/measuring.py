"""What all benchmarks share: two sides measured in turn, one table, one line per bar, exit 1 if any is short."""

import os
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

HALF = ("avx512_bf16", "amx_bf16")
"""CPU flags that make bfloat16 products faster than float32 ones."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A ratio or an error with its target; `at_most` for errors."""

    name: str
    value: float
    target: float
    at_most: bool = False

    @property
    def ok(self) -> bool:
        return self.value <= self.target if self.at_most else self.value >= self.target


@dataclass(frozen=True, slots=True)
class Stopwatch:
    """Seconds by name: ``with watch("name")``."""

    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.seconds[name].append(time.perf_counter() - began)

    def mean(self, name: str) -> float:
        return statistics.mean(self.seconds[name])


def medians(sides: Mapping[str, Callable[[], object]], *, rounds: int) -> dict[str, float]:
    """Median seconds of each side; the sides take turns, so that a busy moment meets them all. One round warms up."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(rounds + 1):
        for name, call in sides.items():
            began = time.perf_counter()
            call()
            if turn:
                seconds[name].append(time.perf_counter() - began)
    return {name: statistics.median(each) for name, each in seconds.items()}


def peak_growth(call: Callable[[], object]) -> int:
    """Bytes by which `call` raises the peak of this process's resident memory, measured in a forked child."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        Path("/proc/self/clear_refs").write_text("5")
        before = _resident("VmRSS")
        call()
        os.write(writing, str(_resident("VmHWM") - before).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        grown = answer.read()
    os.waitpid(child, 0)
    if not grown:
        raise RuntimeError("the measured child died; see what it printed above")
    return int(grown)


def has_half() -> bool:
    """Whether this CPU multiplies in bfloat16 faster than in float32."""
    return any(flag in Path("/proc/cpuinfo").read_text() for flag in HALF)


def finish(bars: Sequence[Bar]) -> None:
    """Print one line per bar, then exit: 1 if any is short."""
    width = max(len(bar.name) for bar in bars)
    for bar in bars:
        sign = "≤" if bar.at_most else "≥"
        verdict = "ok" if bar.ok else "short"
        print(f"{bar.name:<{width}}  {bar.value:.4g}  {sign} {bar.target:g}  {verdict}")
    sys.exit(0 if all(bar.ok for bar in bars) else 1)


def _resident(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return 1024 * int(line.split()[1])
    raise RuntimeError(f"this kernel tells no {field}")
