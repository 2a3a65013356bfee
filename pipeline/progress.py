"""How a stage tells people where it is; the stage knows nothing about terminals or servers."""

import shutil
import sys
import time
from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO, Protocol

from elf.cache.redaction import redact
from elf.pipeline.wording import seconds_text


class Bar(Protocol):
    """One counted piece of work."""

    def advance(self, amount: float = 1, **shown: float | str) -> None:
        """Count ``amount`` more units done and show the named figures beside the bar."""
        ...


class Progress(Protocol):
    """Where a stage reports: bars for counted work, notes for sentences."""

    def note(self, line: str) -> None:
        """Say one sentence to the person watching; it also goes to the stage's log."""
        ...

    def bar(
        self, label: str, total: float | None, *, unit: str = "", done: float = 0
    ) -> AbstractContextManager[Bar]:
        """Open a bar over ``total`` units, of which ``done`` were finished by an earlier run."""
        ...


def figures(shown: dict[str, float | str]) -> str:
    """``loss 3.21  lr 0.002``: the figures of a bar as text."""
    return "  ".join(
        f"{name} {_number(value)}" if isinstance(value, float) else f"{name} {value}"
        for name, value in shown.items()
    )


def fit(shown: Mapping[str, float | str], room: int) -> str:
    """As many of the figures as there is room for, the first ones; an ellipsis stands for the rest."""
    pieces = [figures({name: value}) for name, value in shown.items()]
    for count in range(len(pieces), 0, -1):
        text = "  ".join(pieces[:count]) + (" …" if count < len(pieces) else "")
        if len(text) <= room:
            return text
    return f"{pieces[0][: room - 1].rstrip()}…" if pieces and room > 1 else ""


def pace_text(done: float, start: float, total: float | None, seconds: float) -> str:
    """``5.4/s  2 m 03 s left``: of work that went from ``start`` to ``done`` in so many seconds."""
    rate = (done - start) / max(seconds, 1e-9)
    todo = max(total - done, 0) if total is not None else 0
    left = f"  {seconds_text(todo / rate)} left" if rate and todo else ""
    return f"{_number(rate)}/s{left}"


def _number(value: float) -> str:
    """Four digits that count; large numbers whole and in groups of three."""
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e15 else f"{value:.4g}"


class _LineBar:
    def __init__(
        self, owner: "LineProgress", label: str, total: float | None, unit: str, done: float
    ) -> None:
        self.owner, self.label, self.total, self.unit = owner, label, total, unit
        self.start = self.done = done
        self.began = self.said = time.monotonic()
        self.shown: dict[str, float | str] = {}
        self.fresh = True

    def advance(self, amount: float = 1, **shown: float | str) -> None:
        self.done += amount
        self.shown |= shown
        self.fresh = True
        if time.monotonic() - self.said >= self.owner.every:
            self.say()

    def say(self) -> None:
        self.said, self.fresh = time.monotonic(), False
        share = "" if self.total is None else f" of {_number(self.total)}"
        pace = pace_text(self.done, self.start, self.total, self.said - self.began)
        text = f"{self.label}: {_number(self.done)}{share} {self.unit}".rstrip() + f"  {pace}  "
        self.owner.write(f"{text}{fit(self.shown, self.owner.width - len(text))}".rstrip())


class LineProgress:
    """Plain lines for pipes and log files: a line per bar at most every ``every`` seconds.

    A bar's line has as many of its figures as fit into ``width`` columns, of which there are 80 or what COLUMNS says.
    """

    def __init__(
        self, stream: IO[str] | None = None, *, every: float = 10.0, width: int | None = None
    ) -> None:
        self.stream = stream if stream is not None else sys.stderr
        self.every = every
        self.width = shutil.get_terminal_size().columns if width is None else width

    def write(self, line: str) -> None:
        print(line, file=self.stream, flush=True)

    def note(self, line: str) -> None:
        self.write(line)

    @contextmanager
    def bar(self, label: str, total: float | None, *, unit: str = "", done: float = 0) -> Generator[Bar]:
        bar = _LineBar(self, label, total, unit, done)
        yield bar
        if bar.fresh:
            bar.say()


class LoggedProgress:
    """Another progress, with every note and every bar's end also written to the stage's log file."""

    def __init__(self, shown: Progress, log: Path) -> None:
        self.shown = shown
        self.log = log

    def record(self, line: str) -> None:
        """Append one line, with the time, to the log only."""
        with self.log.open("a", encoding="utf-8") as stream:
            print(time.strftime("%Y-%m-%dT%H:%M:%S"), redact(line), file=stream)

    def note(self, line: str) -> None:
        self.record(line)
        self.shown.note(redact(line))

    @contextmanager
    def bar(self, label: str, total: float | None, *, unit: str = "", done: float = 0) -> Generator[Bar]:
        began = time.monotonic()
        self.record(f"{label}: {_number(done)} of {'?' if total is None else _number(total)} {unit}".rstrip())
        with self.shown.bar(label, total, unit=unit, done=done) as bar:
            yield bar
        self.record(f"{label}: finished after {time.monotonic() - began:.1f} s")
