"""The pages: a site without a broken link, and no command in them that the program would not take."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main
from typer.core import TyperGroup

from elf.flows.arguments import spread
from elf.flows.cli import app

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "configs/own-project/README.md"]


def commands() -> Iterator[tuple[str, str]]:
    """Every line of a code block that calls ``elf``, without what is said beside it."""
    for page in PAGES:
        for line in page.read_text().splitlines():
            if found := re.match(
                r" {4,}(?:source \S+ *&& *|# mine.yaml, then: )?(elf [a-z].*?)(?: {2,}|, | #|$)", line
            ):
                yield page.name, found[1]


FOUND = list(commands())


def test_there_are_commands() -> None:
    assert len(FOUND) > 60
    assert {page for page, _ in FOUND} >= {"README.md", "how-to.md", "tutorial.md"}


@pytest.mark.parametrize(("page", "line"), FOUND)
def test_a_command_is_one_that_the_program_takes(page: str, line: str) -> None:
    arguments = spread(shlex.split(line.replace("…", "X"))[1:])
    command = typer.main.get_command(app)
    context = command.make_context("elf", list(arguments))
    while isinstance(command, TyperGroup):
        name, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        assert command is not None
        context = command.make_context(name, rest, parent=context)
    assert context.command.name != "elf"


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            str(Path(sys.executable).parent / "mkdocs"),
            "build",
            "--strict",
            "--site-dir",
            str(tmp_path / "site"),
        ],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    assert (tmp_path / "site" / "tutorial" / "index.html").is_file()
