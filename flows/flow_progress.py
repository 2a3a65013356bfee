"""What a step of a Prefect flow says while it works: lines in its log, bars as progress artifacts.

Artifacts are sent from a thread of their own and what cannot be sent is dropped: a server that is away slows no
stage and fails none.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import copy_context
from typing import cast
from uuid import UUID

from httpx import HTTPError
from prefect import get_run_logger
from prefect.artifacts import create_progress_artifact, update_progress_artifact

from elf.cache.lease import Holder
from elf.cache.store import Artifact
from elf.flows.flow_signals import heed_termination
from elf.pipeline.plan import Planned
from elf.pipeline.progress import Bar, figures, pace_text
from elf.pipeline.runner import Outcome

SAID_EVERY = 10.0
SHOWN_EVERY = 3.0
"""Seconds between two lines in the log, and between two changes of a progress artifact."""
PARTING = 5.0
"""Seconds that a finished bar waits for its last word to be sent."""


class FlowWatcher:
    """Puts what happens to a step into the task run's log."""

    def __init__(self) -> None:
        self.logger = get_run_logger()
        self.waited = -60.0

    def on_hit(self, planned: Planned, artifact: Artifact) -> None:
        heed_termination()
        self.logger.info("reused %s", artifact.path)

    def on_wait(self, planned: Planned, holder: Holder | None) -> None:
        heed_termination()
        if time.monotonic() - self.waited > 60:
            self.waited = time.monotonic()
            self.logger.info("waiting: being built by %s", holder or "children of a process that is gone")

    def on_start(self, planned: Planned) -> None:
        heed_termination()
        self.logger.info("building %s %s", planned.step.spec.name, planned.key)

    def on_pull(self, planned: Planned) -> None:
        heed_termination()
        self.logger.info("pulling %s %s from the remote", planned.step.spec.name, planned.key)

    def on_done(self, planned: Planned, outcome: Outcome) -> None:
        self.logger.info("%s %s", "pulled" if outcome.pulled else "built", outcome.artifact.path)


class FlowProgress:
    """Notes go to the task run's log; bars to a progress artifact and, now and then, to the log too."""

    def __init__(self, step: str) -> None:
        self.step = step
        self.logger = get_run_logger()

    def note(self, line: str) -> None:
        self.logger.info(line)

    @contextmanager
    def bar(self, label: str, total: float | None, *, unit: str = "", done: float = 0) -> Iterator[Bar]:
        bar = _FlowBar(self, label, total, unit, done)
        shown = _Shown(bar, f"{self.step}: {label}") if total else None
        try:
            yield bar
            bar.say()
        finally:
            if shown is not None:
                shown.close()


class _FlowBar:
    def __init__(self, owner: FlowProgress, label: str, total: float | None, unit: str, done: float) -> None:
        self.owner, self.label, self.total, self.unit = owner, label, total, unit
        self.start = self.done = done
        self.shown: dict[str, float | str] = {}
        self.began = self.said = time.monotonic()

    def percent(self) -> float:
        return min(100.0, 100.0 * self.done / self.total) if self.total else 0.0

    def advance(self, amount: float = 1, **shown: float | str) -> None:
        heed_termination()
        self.done += amount
        self.shown = {**self.shown, **shown}
        if time.monotonic() - self.said >= SAID_EVERY:
            self.say()

    def say(self) -> None:
        self.said = time.monotonic()
        total = f" of {self.total:g}" if self.total is not None else ""
        text = f"{self.label}: {self.done:g}{total} {self.unit}".rstrip()
        pace = pace_text(self.done, self.start, self.total, self.said - self.began)
        self.owner.logger.info("%s  %s", f"{text}  {pace}", figures(self.shown))


class _Shown:
    """Sends how far a bar is, from a thread; the artifact belongs to the task run of whoever made this."""

    def __init__(self, bar: _FlowBar, description: str) -> None:
        self.bar, self.description = bar, description
        self.over = threading.Event()
        self.thread = threading.Thread(target=copy_context().run, args=(self._show,), daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.over.set()
        self.thread.join(PARTING)

    def _show(self) -> None:
        artifact: UUID | None = None
        sent: float | None = None
        while True:
            last = self.over.is_set()
            percent = self.bar.percent()
            if percent != sent:
                try:
                    artifact = _send(artifact, percent, self.description)
                    sent = percent
                except (HTTPError, OSError):
                    pass  # the next round tries again
            if last:
                return
            self.over.wait(SHOWN_EVERY)


def _send(artifact: UUID | None, percent: float, description: str) -> UUID:
    """Create or change the artifact; outside a running event loop Prefect's functions return what they say."""
    if artifact is None:
        return cast("UUID", create_progress_artifact(progress=percent, description=description))
    return cast("UUID", update_progress_artifact(artifact, progress=percent))
