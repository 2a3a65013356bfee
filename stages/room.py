"""Whether what is to be built fits on the disk: what cannot fit does not start.

What is refused cannot fit even if every guess is too large: sizes that rest on a hint of the configuration count for
half. Sizes that nobody knows count as nothing, and what an earlier run left half-built is there already.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from elf.pipeline.errors import Failed
from elf.pipeline.plan import Planned
from elf.pipeline.wording import about, bytes_text, count_of
from elf.stages.config import Encode
from elf.stages.totals import Estimate
from elf.stages.train_settings import Training

DOUBT = 2
"""A size that rests on a hint may turn out so many times smaller."""
MARGIN = 0.01
"""Share of the free bytes that is left to logs, records and whoever else writes there."""


@dataclass(frozen=True, slots=True)
class Room:
    """Bytes that are needed, at the worst moment, to the best of what is known and at the least, and are free.
    ``unknown``: names of steps whose bytes nobody knows, and which are none of these."""

    expected: int
    least: int
    free: int
    steps: int
    largest: Estimate | None
    unknown: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        return self.expected <= self.usable

    @property
    def usable(self) -> int:
        return int(self.free * (1 - MARGIN))


def measure_room(builds: Iterable[Estimate], free: int, begun: Callable[[Planned], int]) -> Room:
    """For the steps that will be built, in their order; ``begun`` says what of one lies half-built already.

    A step that is there is built anew beside what there is, which goes when it is done.
    """
    expected = least = 0
    expected_now = least_now = 0
    biggest: tuple[int, Estimate | None] = (0, None)
    keyed = {each.planned.key: each for each in builds}
    for each in keyed.values():
        size, there = each.bytes or 0, begun(each.planned)
        kept, sure = max(0, size - there), max(0, (size if each.sure else size // DOUBT) - there)
        extra = max(0, each.scratch - max(0, there - size))
        expected = max(expected, expected_now + kept + extra)
        least = max(least, least_now + sure)
        if each.found is None:
            expected_now += kept
            least_now += sure
        biggest = max(biggest, (kept, each), key=lambda pair: pair[0])
    unknown = tuple(each.planned.step.name for each in keyed.values() if each.bytes is None)
    return Room(expected, least, free, len(keyed), biggest[1], unknown)


def refuse_what_cannot_fit(room: Room, store: Path) -> str | None:
    """A warning where it may not fit, None where it does. Raises Failed where it cannot."""
    if room.fits or room.largest is None:
        return None
    largest = room.largest
    steps = "the step" if room.steps == 1 else f"the {count_of(room.steps, 'step')}"
    words = (
        f"{steps} to be built {'needs' if room.steps == 1 else 'need'} {about(bytes_text(room.expected))} in {store}, "
        f"and {bytes_text(room.free)} are free there. The largest is {largest.planned.step.name} with "
        f"{about(bytes_text(largest.bytes))}"
    )
    if room.least <= room.usable:
        return f"it may not fit on the disk: {words}; but that rests on what the configuration expects."
    raise Failed(f"Nothing was started: {words}. {alternatives(largest)}")


def alternatives(largest: Estimate) -> str:
    """What else can be done."""
    section, name = largest.planned.step.section, largest.planned.step.spec.name
    ways: list[str] = []
    if isinstance(section, Encode):
        ways.append("let the encoder run beside training (--set compute.train.source=rolling, or live)")
        if section.dtype == "float32":
            ways.append("store half the bytes (--set encode.dtype=float16)")
    if isinstance(section, Training):
        ways.append(f"keep fewer checkpoints (--set {name}.keep=1)")
    if name in ("encode", "tokenize"):
        ways.append("take fewer rows (tokenize.rows or data.train.share)")
    ways += ["name another store with --store", "free some space"]
    return f"To go on, {', '.join(ways[:-1])} or {ways[-1]}; `elf plan` shows what each costs."
