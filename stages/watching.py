"""All that tells how a training run goes: files, a bar, a tracker, a few samples; of many processes, one tells."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from elf.cache.manifest import JSON
from elf.pipeline.progress import Bar
from elf.pipeline.stage import StageContext
from elf.pipeline.wording import DASH
from elf.stages.effort import weigh_step
from elf.stages.glimpses import Glimpses
from elf.stages.pace import Pacer
from elf.stages.sources import train_compute
from elf.stages.tally import means_of_nothing
from elf.stages.task import Task
from elf.stages.team import Team
from elf.stages.tracking import Tracker, open_tracker
from elf.stages.train_settings import Training
from elf.stages.training_metrics import Journal
from elf.stages.training_state import TrainingState

SHOWN = ("l2", "ce", "lr")
"""What a bar has room for last, after the loss and the speed."""


@dataclass(frozen=True, slots=True, eq=False)
class Watch:
    """Open it with ``open_watch``. What only one process knows is None on the others."""

    journal: Journal
    bar: Bar
    tracker: Tracker
    pacer: Pacer | None
    glimpses: Glimpses | None

    def write(self, line: Mapping[str, JSON]) -> None:
        """A line of ``metrics.jsonl``; the tracker hears of it too."""
        self.journal.write(line)
        step = line["step"]
        assert isinstance(step, int)
        self.tracker.log(step, line)

    def step(self, line: Mapping[str, JSON], *, seconds: float) -> None:
        """A step was made, and took so long."""
        self.write(line)
        step, empty = line["step"], means_of_nothing(line)
        assert isinstance(step, int)
        shown = {name: DASH if name in empty else line[name] for name in ("loss", *SHOWN) if name in line}
        if self.pacer is not None:
            self.tracker.log(step, self.pacer.effort.line(seconds))
            pace = self.pacer.add(seconds)
            shown = {"loss": shown["loss"], **pace, **shown}
        self.bar.advance(
            1, **{name: value for name, value in shown.items() if isinstance(value, float | str)}
        )

    def look(self, state: TrainingState, *, done: bool) -> None:
        """Sample a few texts, if it is time to or the run is ``done``."""
        if self.glimpses is not None and (done or self.glimpses.due(state.step)):
            self.tracker.texts(state.step, self.glimpses.take(state))

    def time(self, step: int, *, seconds: float, waited: float, beside: float) -> None:
        """A line of ``timing.jsonl``: of the step, of that for its rows, and of what was done after it."""
        if self.pacer is not None:
            speed = self.pacer.effort.line(seconds)
            self.journal.time(step, seconds=seconds, waited=waited, beside=round(beside, 6), **speed)


@contextmanager
def open_watch(
    task: Task, section: Training, context: StageContext, team: Team, *, state: TrainingState, kept: int
) -> Generator[Watch]:
    """Of a run that begins, or goes on, at ``state``; ``kept`` bytes of its metrics stay."""
    compute = train_compute(context.compute)
    pacer, glimpses, tracker = None, None, Tracker()
    if team.writes:
        pacer = Pacer(weigh_step(task, section, context, team))
        settings = section.model_dump(mode="json")
        tracker = open_tracker(compute.tracker, context, step=state.step, settings=settings)
        if compute.samples is not None:
            glimpses = Glimpses(
                compute.samples,
                context,
                network=state.network,
                card=task.card,
                seed=section.seed,
                rows=task.shown,
                device=team.device,
            )
    bar = context.progress.bar(task.name, task.length.total, unit="steps", done=state.step)
    journal = Journal(context.out, context.aux, keep=kept, writes=team.writes)
    with tracker, bar as shown, journal:
        yield Watch(journal, shown, tracker, pacer, glimpses)
