"""What a person watching a run sees: one line per step, and live bars while a step works.

Lines about steps go to standard output. Bars and notes go to the terminal if there is one, and to standard
error as plain lines if not.
"""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.table import Column
from rich.text import Text

from elf.cache.lease import Holder
from elf.cache.manifest import short
from elf.cache.store import Artifact
from elf.flows.failing import heed_signals
from elf.pipeline.plan import Plan, Planned
from elf.pipeline.progress import Bar, LineProgress, fit
from elf.pipeline.progress import Progress as StageProgress
from elf.pipeline.runner import Outcome
from elf.pipeline.wording import bytes_text, count_text, rows_of, seconds_text, size_of

LABEL_WIDTH = 22
FIGURES_WIDTH, OTHERS_WIDTH = 26, 54
"""Columns of a bar's figures on a terminal of 80, and of all that stands before them."""


class _Count(ProgressColumn):
    """``120/400 steps``, how fast where it is bytes, and how long it will still take."""

    def render(self, task: Task) -> Text:
        total = f"/{_figure(task.total)}" if task.total is not None else ""
        unit = f" {task.fields['unit']}" if task.fields["unit"] else ""
        rate = f"  {bytes_text(task.speed * 1e6)}/s" if task.speed and task.fields["unit"] == "MB" else ""
        left = f"  {seconds_text(task.time_remaining)} left" if task.time_remaining else ""
        return Text(f"{_figure(task.completed)}{total}{unit}{rate}{left}", style="cyan")


class _LiveBar:
    """A bar of the live display."""

    def __init__(self, display: Progress, task: int) -> None:
        self.display, self.task = display, task
        self.shown: dict[str, float | str] = {}

    def advance(self, amount: float = 1, **shown: float | str) -> None:
        self.shown |= shown
        text = fit(self.shown, max(FIGURES_WIDTH, self.display.console.width - OTHERS_WIDTH))
        self.display.update(self.task, advance=amount, figures=text)  # type: ignore[arg-type]  # TaskID is int


class LiveProgress:
    """Live bars at the foot of a terminal; they vanish when their work is done."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.display = Progress(
            TextColumn("  {task.description}", table_column=Column(no_wrap=True)),
            BarColumn(bar_width=None, table_column=Column(ratio=1, min_width=8)),
            _Count(table_column=Column(no_wrap=True)),
            TextColumn("{task.fields[figures]}", style="dim", table_column=Column(no_wrap=True)),
            console=console,
            transient=True,
            expand=True,
            refresh_per_second=4,
        )

    def note(self, line: str) -> None:
        self.console.print(f"  {line}", style="dim", markup=False, highlight=False)

    @contextmanager
    def bar(self, label: str, total: float | None, *, unit: str = "", done: float = 0) -> Iterator[Bar]:
        first = not self.display.tasks
        task = self.display.add_task(
            label[:LABEL_WIDTH], total=total, completed=int(done), unit=unit, figures=""
        )
        if first:
            self.display.start()
        try:
            yield _LiveBar(self.display, task)
        finally:
            self.display.remove_task(task)
            if not self.display.tasks:
                self.display.stop()


@dataclass(slots=True)
class Narrator:
    """Tells what happens to each step as it happens."""

    out: Console
    plan: Plan
    waiting: float = field(default=0.0, init=False)

    def on_hit(self, planned: Planned, artifact: Artifact) -> None:
        self._line("[green]reused[/]", planned, _contents(artifact))

    def on_wait(self, planned: Planned, holder: Holder | None) -> None:
        """Say once a minute who is building what we want."""
        if time.monotonic() - self.waiting < 60:
            return
        self.waiting = time.monotonic()
        who = str(holder) if holder is not None else "children of a process that is gone"
        self._line("[yellow]waits [/]", planned, "")
        self.out.print(f"         being built by {who}", style="dim", markup=False, soft_wrap=True)

    def on_start(self, planned: Planned) -> None:
        heed_signals()
        self._line("[cyan]begins[/]", planned, "")

    def on_pull(self, planned: Planned) -> None:
        heed_signals()
        self._line("[cyan]pulls [/]", planned, "")

    def on_done(self, planned: Planned, outcome: Outcome) -> None:
        word = "[green]pulled[/]" if outcome.pulled else "[bold]built [/]"
        self._line(word, planned, f"{seconds_text(outcome.seconds)}, {_contents(outcome.artifact)}")
        if outcome.compared == "identical":
            self.out.print("        identical to what was recorded", style="green", highlight=False)
        elif outcome.compared == "differs":
            words = "differs from what was there; what was made from that stays as it is"
            self.out.print(f"        {words}", style="yellow", highlight=False)

    def _line(self, word: str, planned: Planned, rest: str) -> None:
        width = max(len(name) for name in self.plan.names())
        name = planned.step.name.ljust(width)
        self.out.print(
            f"{word}  {name}  [dim]{short(planned.key)}[/]  {rest}".rstrip(), highlight=False, soft_wrap=True
        )


def make_console(*, stderr: bool = False) -> Console:
    """A console on standard output (or error) that never breaks a line of a pipe."""
    stream = sys.stderr if stderr else sys.stdout
    return Console(file=stream) if stream.isatty() else Console(file=stream, soft_wrap=True)


def make_progress(out: Console) -> StageProgress:
    """Live bars where there is a terminal, plain lines on standard error elsewhere."""
    if out.is_terminal:
        return LiveProgress(out)
    if sys.stderr.isatty():
        return LiveProgress(make_console(stderr=True))
    return LineProgress(sys.stderr)


def _contents(artifact: Artifact) -> str:
    rows = rows_of(artifact)
    size = bytes_text(size_of(artifact))
    return size if rows is None else f"{count_text(rows)} rows, {size}"


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) or value >= 100 else f"{value:.3g}"
