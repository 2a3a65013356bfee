"""Progress across a process boundary: the child writes events to a file, the parent replays them."""

import json
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from elf.cache.redaction import redact
from elf.pipeline.progress import Bar, Progress


class _ChildBar:
    def __init__(self, owner: "ChildProgress", label: str) -> None:
        self.owner, self.label = owner, label
        self.pending = 0.0
        self.shown: dict[str, float | str] = {}
        self.said = 0.0

    def advance(self, amount: float = 1, **shown: float | str) -> None:
        self.pending += amount
        self.shown |= shown
        if time.monotonic() - self.said >= 0.2:
            self.flush()

    def flush(self) -> None:
        self.owner.emit({"advance": self.label, "by": self.pending, "shown": self.shown})
        self.pending, self.said = 0.0, time.monotonic()


class ChildProgress:
    """What a child process reports with: JSON lines in a file that the parent tails and replays."""

    def __init__(self, events: Path) -> None:
        self.events = events

    def emit(self, event: dict[str, object]) -> None:
        """Append one event; a whole line per write, so that the reader never sees half of one."""
        with self.events.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(event) + "\n")

    def note(self, line: str) -> None:
        self.emit({"note": redact(line)})

    @contextmanager
    def bar(self, label: str, total: float | None, *, unit: str = "", done: float = 0) -> Generator[Bar]:
        self.emit({"open": label, "total": total, "unit": unit, "done": done})
        bar = _ChildBar(self, label)
        try:
            yield bar
        finally:
            bar.flush()
            self.emit({"close": label})


class Replay:
    """The parent's side of ``ChildProgress``: reads new events and drives another progress with them."""

    def __init__(self, events: Path, shown: Progress) -> None:
        self.events, self.shown = events, shown
        self.position = 0
        self.bars: dict[str, tuple[ExitStack, Bar]] = {}

    def poll(self) -> None:
        """Replay every whole line that appeared since the last call."""
        if not self.events.exists():
            return
        with self.events.open("rb") as stream:
            stream.seek(self.position)
            for line in stream:
                if not line.endswith(b"\n"):
                    break
                self.position += len(line)
                self._apply(json.loads(line))

    def _apply(self, event: dict[str, Any]) -> None:
        if "note" in event:
            self.shown.note(event["note"])
        elif "open" in event:
            stack = ExitStack()
            bar = stack.enter_context(
                self.shown.bar(event["open"], event["total"], unit=event["unit"], done=event["done"])
            )
            self.bars[event["open"]] = stack, bar
        elif "advance" in event:
            # A bar that an interrupt kept from being opened is not there.
            if event["advance"] in self.bars:
                self.bars[event["advance"]][1].advance(event["by"], **event["shown"])
        elif event["close"] in self.bars:
            self.bars.pop(event["close"])[0].close()

    def close(self) -> None:
        """Close the bars that a dead child left open: as broken off, so that nobody says they were finished."""
        self.poll()
        for stack, _ in self.bars.values():
            with suppress(_BrokenOff), stack:
                raise _BrokenOff
        self.bars.clear()


class _BrokenOff(Exception):
    """The child ended before what it counted was done."""
