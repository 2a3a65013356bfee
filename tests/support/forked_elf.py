"""``elf …`` in forked children of one process that has imported everything: no seconds spent on imports.

A line of JSON in, ``{"arguments", "folder", "environment"}``; the child's exit code out (negative: the signal). Each
child is a process of its own session that calls the command's entry; what it prints goes to ``said.txt`` in its
folder. Training still starts its own processes.
"""

import json
import os
import sys
from importlib import import_module
from pathlib import Path

import touches
from forking import Forking

IMPORTED = (
    "elf.flows.cli",
    "elf.flows.commands_run",
    "elf.stages.control",
    "elf.stages.encode",
    "elf.stages.evaluate",
    "elf.stages.pretrain",
    "elf.stages.sample",
    "elf.stages.tokenization",
)


class ForkedElf:
    """The test's side."""

    def __init__(self) -> None:
        self._forking = Forking(__file__, COLUMNS="80")

    def run(self, folder: Path, *arguments: str, **environment: str) -> int:
        """Run the command to its end; its exit code."""
        folder.mkdir(exist_ok=True)
        return self._forking.order(arguments=arguments, folder=str(folder), environment=environment)

    def close(self) -> None:
        self._forking.close()


def said(folder: Path) -> str:
    """What the last command in a folder printed, both streams."""
    return (folder / "said.txt").read_text()


def serve() -> None:
    """Import, then fork on demand."""
    for name in IMPORTED:
        import_module(name)
    for name in ("T5EncoderModel", "T5ForConditionalGeneration"):
        getattr(import_module("transformers"), name)  # imported when asked for
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            _become_elf(**json.loads(line))
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _become_elf(arguments: list[str], folder: str, environment: dict[str, str]) -> None:
    from elf.flows.cli import main

    os.setsid()
    os.chdir(folder)
    os.environ.update(environment)
    printed = os.open("said.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(printed, 1)
    os.dup2(printed, 2)
    touches.take_part()
    sys.argv = ["elf", *arguments]
    code = 0
    try:
        main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    serve()
