"""Training where others compute too: what it is worth that threads spin briefly, and what that costs where nobody does.

    .venv/bin/python benchmarks/busy.py

`elf run` of a network of the quickstart's size on the tokens of `tiny`, on all cores: with OpenMP as it comes and as
`elf` sets it, in turn; alone, and beside as many processes that do nothing but count as there are cores.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from zlib import crc32

from measuring import Bar, finish

from elf.pipeline.spinning import TURNS, VARIABLE

ELF = str(Path(sys.executable).parent / "elf")
USUAL = "300000"
"""What GNU's OpenMP takes where nothing is said."""
CORES = len(os.sched_getaffinity(0))
NETWORK = "train.model={depth: 4, hidden: 192, heads: 4}"
FAST, SLOW = 12, 5
"""Steps of a run, alone and beside others."""
ROUNDS = 2


def run(folder: Path, name: str, turns: str, steps: int) -> float:
    """Seconds of a step: the median of a training run that nobody made before, without its first steps."""
    settings = [NETWORK, "train.batch=24", "train.heldout=null", f"train.steps={steps}", f"name={name}"]
    settings.append(f"compute.train.threads={CORES}")
    seed = f"train.seed={crc32(name.encode())}"
    done = subprocess.run(
        [ELF, "run", "tiny", "--until", "train", "--set", *settings, seed],
        cwd=folder,
        env=os.environ | {VARIABLE: turns},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"elf run ended with {done.returncode}: {done.stderr}")
    lines = (folder / "runs" / name / "train" / "aux" / "timing.jsonl").read_text().splitlines()
    return median(json.loads(line)["seconds"] for line in lines[2:])


@contextmanager
def others(count: int) -> Iterator[None]:
    """So many processes that never wait."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def measure(folder: Path, what: str, steps: int) -> float:
    """Time of a step with OpenMP as it comes, over that as `elf` sets it."""
    seconds: dict[str, list[float]] = {USUAL: [], TURNS: []}
    for number in range(ROUNDS):
        for turns, found in seconds.items():
            found.append(run(folder, f"{what}-{turns}-{number}", turns, steps))
    usual, ours = (median(found) for found in seconds.values())
    print(f"{what}: a step takes {usual:.3f} s as OpenMP comes, {ours:.3f} s with {VARIABLE}={TURNS}")
    return usual / ours


def main() -> None:
    """Both machines, the quiet one and the busy one."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run(folder, "first", TURNS, 3)  # tokens and latents
        bars = [Bar("alone", measure(folder, "alone", FAST), 0.95)]
        with others(CORES):
            bars.append(Bar(f"beside {CORES} others", measure(folder, "busy", SLOW), 2.0))
    finish(bars)


if __name__ == "__main__":
    main()
