"""``metrics.jsonl``: one line a step, and one per held-out measurement; what steps determine, never what clocks say.

A checkpoint remembers how many bytes there were, and their digest; a resumed run cuts the file back to them, so that
the finished file equals that of a run that was never stopped. Clock readings go to ``aux/timing.jsonl``, which is only
added to.
"""

import json
import os
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self, cast

import xxhash

from elf.cache.errors import AGAIN, Damaged
from elf.cache.files import writing
from elf.cache.manifest import JSON
from elf.stages.json_files import stream_json_lines
from elf.stages.pace import METRICS, TIMING
from elf.stages.tally import BY_LEVEL, counts_of
from elf.stages.token_tally import nats_in

BYTES, DIGEST = "metrics_bytes", "metrics_digest"
"""What a checkpoint knows of the metrics."""


class Journal:
    """The two files of a run. ``keep`` bytes of ``out/metrics.jsonl`` are kept, as many as a checkpoint knows of, and
    the rest is cut off; ``aux`` gets ``timing.jsonl``. With ``writes`` false nothing is touched: that process is not
    the one that writes."""

    def __init__(self, out: Path, aux: Path, *, keep: int, writes: bool = True) -> None:
        self.path = out / METRICS if writes else Path(os.devnull)
        self._digest = _digest(self.path, keep if writes else 0)
        with writing(self.path):
            self._metrics = self.path.open("ab")
            if writes:
                self._metrics.truncate(keep)
            self._timing = (aux / TIMING if writes else self.path).open("a", buffering=1, encoding="utf-8")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._metrics.close()
        self._timing.close()

    def write(self, line: Mapping[str, JSON]) -> None:
        """Append a line of metrics: sorted keys, refused (ValueError) if a number is not finite."""
        text = json.dumps(line, sort_keys=True, allow_nan=False).encode() + b"\n"
        with writing(self.path):
            self._metrics.write(text)
            self._metrics.flush()
        self._digest.update(text)

    def time(self, step: int, *, seconds: float, waited: float, **rest: float) -> None:
        """Append how long a step took and how long of it was waiting for its rows, and what else clocks say."""
        line = {"step": step, "seconds": round(seconds, 6), "waited": round(waited, 6), **rest}
        with writing(self.path):
            self._timing.write(json.dumps(line) + "\n")

    def sync(self) -> dict[str, JSON]:
        """Bring the metrics to the disk; for a checkpoint, how many bytes there are and their digest."""
        with writing(self.path):
            if self.path.is_file():
                os.fsync(self._metrics.fileno())
        return {BYTES: self._metrics.tell(), DIGEST: self._digest.hexdigest()}


def fault_of(out: Path, state: Mapping[str, JSON]) -> str | None:
    """Why the metrics in ``out`` are not what they were when a checkpoint with this ``state`` was saved, as the end of
    a sentence about it; None where they are. The checkpoint that ends a run leaves that to the manifest."""
    path, keep = out / METRICS, state[BYTES]
    assert isinstance(keep, int)
    have = path.stat().st_size if path.exists() else 0
    if have < keep:
        return f"was saved when {METRICS} held {keep} bytes, and it holds {have}"
    if DIGEST in state and _digest(path, keep).hexdigest() != state[DIGEST]:
        return f"was saved when the first {keep} bytes of {METRICS} were others"
    return None


def _digest(path: Path, length: int) -> xxhash.xxh3_128:
    """Of the first bytes of a file."""
    state = xxhash.xxh3_128()
    if length:
        with path.open("rb") as file:
            while length and (block := file.read(min(length, 2**20))):
                state.update(block)
                length -= len(block)
    return state


def read_metrics(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a finished file. Raises Damaged, naming the line, where it holds anything else."""
    for number, line in enumerate(stream_json_lines(path), 1):
        if not isinstance(line, dict) or "step" not in line:
            raise Damaged(f"{path}, line {number}, tells of no step. {AGAIN}")
        yield cast("dict[str, Any]", line)


def summarise(path: Path, *, last: int = 50) -> dict[str, JSON]:
    """Facts of a finished file: loss, ce and l2 over all positions (of a distillation: rows) of the last ``last``
    steps, each over its own (0 if there are none), of a baseline loss and nats, and the last held-out line without its
    lists by noise level."""
    steps: deque[dict[str, Any]] = deque(maxlen=last)
    heldout: dict[str, Any] | None = None
    for line in read_metrics(path):
        if "heldout_loss" in line:
            heldout = {name: value for name, value in line.items() if not name.endswith(BY_LEVEL)}
        else:
            steps.append(line)
    if steps and (nats := nats_in(steps[-1])) is not None:
        mean = sum(line[nats] * line["positions"] for line in steps) / max(
            sum(line["positions"] for line in steps), 1
        )
        return {"last_steps": len(steps), "loss": mean, nats: mean, "heldout": heldout}
    counts = [counts_of(line) for line in steps]
    decoded, denoised = (sum(count[branch] for count in counts) for branch in (0, 1))
    ce = sum(line["ce"] * count[0] for line, count in zip(steps, counts, strict=True))
    l2 = sum(line["l2"] * count[1] for line, count in zip(steps, counts, strict=True))
    return {
        "last_steps": len(steps),
        "loss": (ce + l2) / max(decoded + denoised, 1),
        "ce": ce / max(decoded, 1),
        "l2": l2 / max(denoised, 1),
        "heldout": heldout,
    }
