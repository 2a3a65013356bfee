"""When stored latents pay: what encoding once costs against an encoder beside every training step.

A store saves an encoder's pass per epoch, and costs one pass, disk, and the wait for the disk where it gives bytes
more slowly than training takes them (a store that fits into memory is read from the disk once at most).
"""

from dataclasses import dataclass
from math import ceil, inf

from elf.cache.manifest import JSON
from elf.pipeline.plan import Planned
from elf.pipeline.wording import about_seconds, bytes_text
from elf.stages.estimate import Estimator
from elf.stages.train_settings import Train

CACHED = 0.5
"""Share of the memory that a store may take and still be read from there, epoch after epoch."""
NEVER = 1000
"""Epochs, or runs, from which on nobody waits for it."""


@dataclass(frozen=True, slots=True)
class BreakEven:
    """Stored latents against an encoder in the loop, for one training run.

    Seconds: ``encode`` once; ``live`` per epoch, of the encoder beside the steps; ``stall`` per epoch, of a store that
    gives bytes too slowly; ``training`` per epoch, of the steps alone. ``bytes``: the disk a store takes. ``epochs``:
    of this run.
    """

    encode: float
    live: float
    stall: float
    training: float
    bytes: int
    epochs: float

    @property
    def saving(self) -> float:
        """Seconds that a store saves per epoch; negative where it costs some."""
        return self.live - self.stall

    @property
    def after(self) -> float:
        """Epochs after which a store is ahead; infinite where it never is."""
        return self.encode / self.saving if self.saving > 0 else inf

    @property
    def runs(self) -> float:
        """Runs as long as this one after which a store is ahead."""
        return self.after / self.epochs if self.epochs else inf

    def lines(self) -> tuple[str, str]:
        """In words: what each costs, and when a store is ahead; both fit 80 columns."""
        live, once = about_seconds(self.live), about_seconds(self.encode)
        share = self.live / self.training
        more = f"+{share:.1%}" if share < 0.1 else f"+{share:.0%}"
        return (
            f"Encoder: live {live} an epoch ({more}); stored {once} once, and {bytes_text(self.bytes)}.",
            f"A store {self.verdict()}.",
        )

    def verdict(self) -> str:
        """``pays after 1.1 epochs of the 5 in this run``."""
        if self.saving <= 0:
            return "never pays: the disk gives its bytes more slowly than that"
        if self.after >= NEVER:
            return "never pays: it saves next to nothing"
        if self.after <= self.epochs:
            return f"pays after {_epochs(self.after)} of the {_figure(self.epochs)} in this run"
        first = f"never pays within this run ({_epochs(self.epochs)}), but "
        return first + (f"with {_ordinal(ceil(self.runs))}" if self.runs < NEVER else _epochs(self.after))

    def plain(self) -> dict[str, JSON]:
        """For JSON; None for never."""
        return {
            "encode_seconds": self.encode,
            "live_seconds_per_epoch": self.live,
            "stall_seconds_per_epoch": self.stall,
            "saved_seconds_per_epoch": self.saving,
            "training_seconds_per_epoch": self.training,
            "bytes": self.bytes,
            "epochs_of_this_run": self.epochs,
            "pays_after_epochs": None if self.after == inf else self.after,
            "pays_after_runs": None if self.runs == inf else self.runs,
            "words": f"A store {self.verdict()}.",
        }


def weigh(work: Estimator, train: Planned) -> BreakEven | None:
    """For a train step that ``work`` has walked over; None where too little is known, or no latents are wanted."""
    if "latents" not in train.step.inputs:
        return None
    section, encode = train.step.section, work.known[train.step.inputs["latents"]]
    assert isinstance(section, Train)
    rows, steps, training = encode.rows, work.steps(train), work.training_seconds(train)
    once = work.fresh(encode.planned)
    if not rows or not steps or training is None or once.seconds is None or once.bytes is None:
        return None
    live = work.live_seconds(train, rows)
    if live is None:
        return None
    epochs, size = steps * section.batch / rows, encode.bytes or once.bytes
    stall, disk = 0.0, work.machine.disk
    if disk is not None and size > CACHED * work.machine.memory:
        stall = max(0.0, size / disk.read - training / epochs)
    return BreakEven(once.seconds, live, stall, training / epochs, size, epochs)


def _figure(number: float) -> str:
    """Two digits, more for what is larger: ``0.84``, ``1.1``, ``32``."""
    return f"{number:,.0f}" if number >= 9.95 else f"{number:.2g}"


def _epochs(number: float) -> str:
    shown = _figure(number)
    return f"{shown} epoch{'' if shown == '1' else 's'}"


def _ordinal(number: int) -> str:
    """``the 2nd like it``."""
    ending = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"the {number}{ending} like it"
