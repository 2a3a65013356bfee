"""How long a step took over all the stretches it was built in: one that was killed and went on counts them all.

``aux/stretches.json`` in the step's folder lists them, each with its start and, once it is over, its seconds. A
stretch that was killed could not write its end; the time of the last file it wrote stands for it.
"""

import json
import os
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from elf.cache.files import write_atomic

FILE = "stretches.json"


@dataclass(frozen=True, slots=True)
class Stretch:
    """``started`` in UTC; ``seconds`` is None while it lasts."""

    started: datetime
    seconds: float | None


class Stretches:
    """The stretches of the step that is built in ``folder``; the last of them begins here."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "aux" / FILE
        self._earlier = [_closed(each, folder) for each in _read(self._path)]
        self._began = time.monotonic()
        self._current = Stretch(datetime.now(UTC), None)
        self._write()

    @property
    def started(self) -> datetime:
        """When the first of them began."""
        return (*self._earlier, self._current)[0].started

    def seconds(self) -> float:
        """All of them together, the present one so far."""
        return sum(each.seconds or 0.0 for each in self._earlier) + time.monotonic() - self._began

    def end(self) -> None:
        """Note how long the present one took."""
        self._current = Stretch(self._current.started, time.monotonic() - self._began)
        self._write()

    def _write(self) -> None:
        plain = [
            {
                "started": each.started.isoformat(timespec="milliseconds"),
                "seconds": None if each.seconds is None else round(each.seconds, 3),
            }
            for each in (*self._earlier, self._current)
        ]
        write_atomic(self._path, json.dumps(plain, indent=1) + "\n")


def _read(path: Path) -> list[Stretch]:
    if not path.exists():
        return []
    try:
        plain = json.loads(path.read_bytes())
        return [Stretch(datetime.fromisoformat(each["started"]), each["seconds"]) for each in plain]
    except (ValueError, KeyError, TypeError):
        return []  # a clock reading that a broken disk lost shall not keep a step from going on


def _closed(stretch: Stretch, folder: Path) -> Stretch:
    """A stretch that was killed ended when it last wrote something."""
    if stretch.seconds is not None:
        return stretch
    ended = max(
        (Path(here, name).stat().st_mtime for here, _, names in os.walk(folder) for name in names),
        default=0.0,
    )
    return Stretch(stretch.started, max(ended - stretch.started.timestamp(), 0.0))
