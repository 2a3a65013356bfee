"""What one waits for all day: how long the commands take that build nothing.

    .venv/bin/python benchmarks/everyday.py

Whole processes, from the shell's point of view: medians of ten calls, taken in turn, after `elf run tiny` has filled a
store of its own. The machine was measured before, as every `elf plan` but the first finds it.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from measuring import Bar, finish, medians

ELF = str(Path(sys.executable).parent / "elf")
ROUNDS = 10
LIMITS = {
    "elf --help": 0.5,
    "elf plan owt-full": 1.0,
    "elf plan tiny": 1.0,
    "elf why tiny train --set train.seed=1": 1.0,
    "elf run tiny": 2.0,
}
"""Commands and the seconds each may take; the last one reuses every step."""


def calling(command: str, folder: Path) -> Callable[[], None]:
    """A call of a command in a folder, which must succeed."""
    _, *arguments = command.split()

    def call() -> None:
        done = subprocess.run([ELF, *arguments], cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{command} ended with {done.returncode}: {done.stderr}")

    return call


def main() -> None:
    for name in [name for name in os.environ if name.startswith("ELF_")]:
        del os.environ[name]
    with tempfile.TemporaryDirectory() as folder:
        sides = {command: calling(command, Path(folder)) for command in LIMITS}
        calling("elf run tiny", Path(folder))()
        seconds = medians(sides, rounds=ROUNDS)
    width = max(map(len, LIMITS))
    print(f"{'command':<{width}}  seconds, median of {ROUNDS}")
    for command, each in seconds.items():
        print(f"{command:<{width}}  {each:.2f}")
    print()
    finish([Bar(command, seconds[command], limit, at_most=True) for command, limit in LIMITS.items()])


if __name__ == "__main__":
    main()
