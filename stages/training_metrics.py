"""``metrics.jsonl``: one line a step, and one per held-out measurement; what steps determine, never what clocks say.

A checkpoint remembers how many bytes there were; a resumed run cuts the file back to them, so that the finished
file equals that of a run that was never stopped. Clock readings go to ``aux/timing.jsonl``, which is only
added to.
"""

import json
import os
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from elf.cache.files import writing
from elf.cache.manifest import JSON
from elf.pipeline.errors import Failed

METRICS = "metrics.jsonl"
TIMING = "timing.jsonl"


class MetricsFile:
    """Lines appended to ``path``, whose first ``keep`` bytes are kept and the rest cut off.

    Raises Failed where the file is shorter than that: lines of finished steps were lost.
    """

    def __init__(self, path: Path, *, keep: int) -> None:
        self.path = path
        have = path.stat().st_size if path.exists() else 0
        if have < keep:
            raise Failed(
                f"{path} holds {have} bytes, but the checkpoint to go on from was saved when it held {keep}: "
                "lines of finished steps are lost. Put the file back, or delete the checkpoints beside it to "
                "train from step 0."
            )
        with writing(path):
            self._file = path.open("ab")
            self._file.truncate(keep)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._file.close()

    def write(self, line: Mapping[str, JSON]) -> None:
        """Append one line: sorted keys, refused (ValueError) if a number is not finite."""
        with writing(self.path):
            self._file.write(json.dumps(line, sort_keys=True, allow_nan=False).encode() + b"\n")

    def sync(self) -> int:
        """Bring everything to the disk; how many bytes there are."""
        with writing(self.path):
            self._file.flush()
            os.fsync(self._file.fileno())
        return self._file.tell()


def read_metrics(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a finished file."""
    with path.open(encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)


def summarise(path: Path, *, last: int = 50) -> dict[str, JSON]:
    """Facts of a finished file: mean loss, ce and l2 over the last ``last`` steps, and the last held-out line."""
    steps: deque[dict[str, Any]] = deque(maxlen=last)
    heldout: dict[str, Any] | None = None
    for line in read_metrics(path):
        if "heldout_loss" in line:
            heldout = line
        else:
            steps.append(line)
    means = {name: sum(line[name] for line in steps) / len(steps) for name in ("loss", "ce", "l2") if steps}
    return {"last_steps": len(steps), **means, "heldout": heldout}
