"""How fast this machine is, as a probe found it: what a plan's seconds are worked out from. Light: no torch here.

The probe (``elf.stages.probe``) runs in a process of its own and takes a few seconds, once: what it found is kept in a
file of this user's cache folder, named by host, cores, GPUs and version of torch. Without it a machine counts as so
many cores of the reference.
"""

import json
import math
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from elf.cache.errors import CacheError
from elf.cache.files import make_folder, write_atomic
from elf.pipeline.stage import Compute
from elf.pipeline.wording import bytes_text, count_of

Ladder: TypeAlias = Mapping[int, float]
"""Operations a second in products of (positions × width) with (width × width), by width."""

FORMAT = 1
PROBE = "elf.stages.probe"
LONGEST = 120
"""Seconds a probe may take."""


@dataclass(frozen=True, slots=True)
class Speed:
    """What a probe measured; ladders by precision, ``float32`` and ``bfloat16``."""

    measured: str
    """Day, ISO; empty for the reference, which nobody measured here."""
    busy: bool
    """Others worked on the machine, so that ``all`` is a guess."""
    one: Mapping[str, Ladder]
    """One CPU thread."""
    all: Mapping[str, Ladder]
    """As many threads as there are cores."""
    gpu: Mapping[str, Ladder]
    """One GPU; empty without."""
    call: float
    """Seconds of a tensor operation too small for its arithmetic to count, on a CPU."""
    launch: float
    """The same on a GPU."""
    loops: float
    """Turns a second of a plain loop of Python."""


@dataclass(frozen=True, slots=True)
class DiskSpeed:
    """Bytes a second, to the disk and from it with nothing in memory; ``measured`` is the day, ISO."""

    write: float
    read: float
    measured: str

    def __str__(self) -> str:
        return f"writes {bytes_text(self.write)}/s, reads {bytes_text(self.read)}/s"


class Work(NamedTuple):
    """What a stage computes: ``flops`` in products about ``width`` wide, in ``calls`` operations.

    ``narrow``: the width at which all that is not a product takes as long as the products do.
    """

    flops: float
    width: int
    precision: str = "float32"
    calls: float = 0.0
    narrow: float = 0.0


GPU_NARROW = 6
"""How much wider products must be on a GPU for all else to matter as little: public training runs of such networks
reach 30 to 40 % of a GPU's peak. No GPU was measured."""
REFERENCE_LOOPS = 7.5e6
"""Of the machine on which the seconds that are not arithmetic were read off (benchmarks/RESULTS.md, machine A)."""


def reference(cores: int) -> Speed:
    """One core of machine A, so many times; a data-centre GPU as its makers and public reports have it."""
    one = {"float32": {64: 33e9, 256: 34e9, 1024: 33e9}, "bfloat16": {64: 1.4e9, 256: 1.4e9, 1024: 1.4e9}}
    many = {name: {width: rate * cores for width, rate in ladder.items()} for name, ladder in one.items()}
    gpu = {"float32": {256: 15e12, 1024: 35e12}, "bfloat16": {256: 60e12, 1024: 350e12}}
    return Speed("", False, one, many, gpu, call=4e-6, launch=6e-6, loops=REFERENCE_LOOPS)


@dataclass(frozen=True, slots=True)
class Machine:
    """What the estimates are for."""

    cores: int
    gpus: int
    speed: Speed
    memory: int
    """Bytes."""
    disk: DiskSpeed | None = None
    """Of the store's file system, where that was measured."""

    @property
    def pace(self) -> float:
        """How many times faster than the reference it is where no arithmetic is done."""
        return self.speed.loops / REFERENCE_LOOPS

    @property
    def factor(self) -> int:
        """How far times may be off: on a CPU that was measured, runs took 0.6 to 1.6 times what was said."""
        return 4 if self.accelerated else 2 if self.speed.measured else 3

    @property
    def accelerated(self) -> bool:
        """Whether there is a GPU that torch can use."""
        return self.gpus > 0 and bool(self.speed.gpu)

    def uses_gpu(self, compute: Compute) -> bool:
        return self.accelerated and compute.device != "cpu"

    def seconds(self, work: Work, compute: Compute, *, processes: int = 1) -> float:
        """For a stage of so many processes with these settings; GPUs launch operations while they compute."""
        gpu = self.uses_gpu(compute)
        flops = work.flops * (1 + work.narrow * (GPU_NARROW if gpu else 1) / work.width)
        if gpu:
            shared = min(processes, self.gpus)
            rate = shared * _rung(_ladder(self.speed.gpu, work.precision), work.width)
            return max(flops / rate, work.calls * self.speed.launch)
        threads = min(self.cores, processes * (compute.threads or self.cores))
        return flops / self.rate(threads, work.width, work.precision) + work.calls * self.speed.call

    def peak(self, compute: Compute, precision: str, *, processes: int = 1) -> float:
        """Operations a second in the best products that were measured, in float32 or ``precision``, of so many
        processes together."""
        names = {"float32", precision}
        if self.uses_gpu(compute):
            best = max(rate for name in names for rate in _ladder(self.speed.gpu, name).values())
            return best * min(processes, self.gpus)
        threads = min(self.cores, processes * (compute.threads or self.cores))
        return max(self.rate(threads, 1024, name) for name in names)

    def told(self, compute: Compute, precision: str, *, processes: int = 1) -> str:
        """What ``peak`` is the peak of, in words."""
        if self.uses_gpu(compute):
            return f"{count_of(min(processes, self.gpus), 'GPU')} in {precision}"
        threads = min(self.cores, processes * (compute.threads or self.cores))
        return f"{count_of(threads, 'thread')} in float32" + (
            f" or {precision}" if precision != "float32" else ""
        )

    def rate(self, threads: int, width: int, precision: str = "float32") -> float:
        """Operations a second on so many threads: between one and all, as a power of their number."""
        one = _rung(_ladder(self.speed.one, precision), width)
        if self.cores == 1 or threads <= 1:
            return one
        gain = max(1.0, _rung(_ladder(self.speed.all, precision), width) / one)
        return one * threads ** (math.log(gain) / math.log(self.cores))

    def __str__(self) -> str:
        cores = f"{self.cores} CPU core{'' if self.cores == 1 else 's'}"
        return f"{cores}, {self.gpus or 'no'} GPU{'s' if self.gpus > 1 else ''}"


def this_machine() -> Machine:
    """Cores this process may use, GPUs the kernel knows, and what a probe found here earlier; nothing is measured."""
    cores, gpus = len(os.sched_getaffinity(0)), _gpus()
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return Machine(cores, gpus, read_speed(machine_file(cores, gpus)) or reference(cores), memory)


def measured_machine(tell: Callable[[str], None], *, anew: bool = False) -> Machine:
    """This machine with its speed measured, now if it was not before or if ``anew``; ``tell`` hears of it first.

    Where the probe fails the reference stands, and ``tell`` says so.
    """
    here = this_machine()
    if here.speed.measured and not anew:
        return here
    path = machine_file(here.cores, here.gpus)
    tell(f"measuring this machine, once, for some seconds; what comes out is kept in {path}")
    try:
        done = subprocess.run(
            [sys.executable, "-m", PROBE], capture_output=True, text=True, check=True, timeout=LONGEST
        )
        speed = _speed(json.loads(done.stdout))
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError) as error:
        tell(f"this machine could not be measured ({error}); times are those of the reference machine")
        return here
    remember(path, speed, tell)
    return replace(here, speed=speed)


def remember(path: Path, speed: Speed, tell: Callable[[str], None]) -> None:
    """Keep what was measured; where that cannot be written it is measured again next time."""
    try:
        make_folder(path.parent)
        write_atomic(path, json.dumps({"format": FORMAT, **asdict(speed)}, indent=1) + "\n")
    except (OSError, CacheError) as error:
        tell(f"what was measured cannot be kept: {error}")


def read_speed(path: Path) -> Speed | None:
    """What an earlier probe found, if it can be read."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return _speed(found) if found["format"] == FORMAT else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def cache_folder() -> Path:
    """``$XDG_CACHE_HOME/elf``, else ``~/.cache/elf``."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "elf"


def machine_file(cores: int, gpus: int) -> Path:
    """Where the speed of this host is kept; a host that changes is another."""
    try:
        torch = version("torch")
    except PackageNotFoundError:
        torch = "none"
    return (
        cache_folder() / f"machine-{platform.node() or 'here'}-{cores}-cores-{gpus}-gpus-torch-{torch}.json"
    )


def _gpus() -> int:
    known = Path("/proc/driver/nvidia/gpus")
    return len(list(known.iterdir())) if known.is_dir() else 0


def _ladder(ladders: Mapping[str, Ladder], precision: str) -> Ladder:
    return ladders.get(precision) or ladders["float32"]


def _rung(ladder: Ladder, width: int) -> float:
    """The rate at a width: that of the nearest ends outside, between two by the logarithm of the width."""
    widths = sorted(ladder)
    if width <= widths[0] or width >= widths[-1]:
        return ladder[widths[0] if width <= widths[0] else widths[-1]]
    above = next(each for each in widths if each >= width)
    below = widths[widths.index(above) - 1]
    share = math.log(width / below) / math.log(above / below)
    return ladder[below] ** (1 - share) * ladder[above] ** share


def _speed(plain: Mapping[str, Any]) -> Speed:
    """Raises KeyError, TypeError or ValueError where it is none."""

    def ladders(name: str) -> dict[str, Ladder]:
        found: dict[str, Ladder] = {
            precision: {int(width): _positive(rate) for width, rate in ladder.items()}
            for precision, ladder in plain[name].items()
        }
        if name != "gpu" and not found["float32"]:
            raise ValueError(f"{name} has no rate")
        return found

    return Speed(
        measured=str(plain["measured"]),
        busy=bool(plain["busy"]),
        one=ladders("one"),
        all=ladders("all"),
        gpu=ladders("gpu"),
        call=_positive(plain["call"]),
        launch=_positive(plain["launch"]),
        loops=_positive(plain["loops"]),
    )


def _positive(number: Any) -> float:
    value = float(number)
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{number} is no rate")
    return value
