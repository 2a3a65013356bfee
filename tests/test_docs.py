"""The pages: blocks that say what they are, settings and commands that the program takes, no broken link."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main
from pages import PAGES, REASONS, ROOT, Block, Malformed, every_block, read_blocks
from typer.core import TyperGroup

from elf.flows.arguments import spread
from elf.flows.cli import app
from elf.flows.request import shipped_folder
from elf.pipeline.config import load_experiment
from elf.stages.config import Experiment

BLOCKS = every_block()
OTHERS = {"cluster.yaml", "pod.yaml"}
"""Titles of YAML that another program reads."""
SETTINGS = [block for block in BLOCKS if block.language == "yaml" and block.title not in OTHERS]
FORM = re.compile(r"…|\b(CONFIG|RUN|STAGE|FILE|KEY|TRAIN|OWNER|PASSWORD)\b")


def commands() -> Iterator[tuple[str, str]]:
    """Every line of a block that calls ``elf``, without what is said beside it."""
    for block in BLOCKS:
        for line in block.text.splitlines() if block.language in ("sh", "text", "yaml") else ():
            if found := re.match(
                r"(?:[\w.-]+\.yaml, then: |# [\w.-]+\.yaml, then: )?(elf [a-z].*?)(?: {2,}|, | #| \|\| | > |$)",
                line,
            ):
                yield block.place, found[1]


FOUND = list(commands())


def test_there_are_blocks_and_commands() -> None:
    assert len(FOUND) > 60
    assert sum(block.runs for block in BLOCKS) > 30
    told = {page.relative_to(ROOT).as_posix() for page in PAGES}
    assert told >= {"README.md", "docs/tutorial.md", "docs/how-to/store.md", "configs/own-project/README.md"}


@pytest.mark.parametrize(
    "block", [each for each in BLOCKS if each.language == "sh"], ids=lambda block: block.place
)
def test_a_shell_block_is_run_or_gives_one_of_the_reasons(block: Block) -> None:
    assert block.runs or block.mark in REASONS
    done = subprocess.run(["bash", "-n", "-c", block.text], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("block", [each for each in BLOCKS if each.runs], ids=lambda block: block.place)
def test_a_shell_block_that_is_run_is_no_form(block: Block) -> None:
    assert not FORM.search(re.sub(r"(^|\s)#.*", "", block.text)), (
        "a form; mark it: <!-- not run: shows a form -->"
    )


def test_no_command_hides_in_a_block_of_text() -> None:
    """A list of what there is, CONFIG and RUN standing for something, is text; a command to type is none."""
    for block in BLOCKS:
        lines = block.text.splitlines() if block.language == "text" else []
        if any(line.split(" ")[0] in ("elf", "make", "prefect", "python") for line in lines):
            assert FORM.search(block.text), f"{block.place}: make it a shell block"


@pytest.mark.parametrize("block", SETTINGS, ids=lambda block: block.place)
def test_settings_are_those_that_a_configuration_takes(block: Block, tmp_path: Path) -> None:
    parent = "" if block.text.lstrip().startswith("extends:") or "\nextends:" in block.text else "quickstart"
    path = tmp_path / "settings.yaml"
    path.write_text((f"extends: {parent}\n" if parent else "") + block.text)
    load_experiment(str(path), Experiment, [], shipped_folder())


@pytest.mark.parametrize(("place", "line"), FOUND, ids=lambda each: each)
def test_a_command_is_one_that_the_program_takes(place: str, line: str) -> None:
    arguments = spread(shlex.split(line.replace("…", "X"))[1:])
    command = typer.main.get_command(app)
    context = command.make_context("elf", list(arguments))
    while isinstance(command, TyperGroup):
        name, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        assert command is not None
        context = command.make_context(name, rest, parent=context)
    assert context.command.name != "elf"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("```bash\nls\n```\n", "language is 'bash'"),
        ("```\nls\n```\n", "language is ''"),
        ("```sh\nls\n", "has no end"),
        ("So:\n\n    elf runs\n", "an indented block"),
        ("<!-- not run: needs hours -->\nSo:\n", "stands before no block"),
        ("<!-- not run: needs hours -->\n", "stands before no block"),
        ("<!-- not run: needs hours -->\n```yaml\na: 1\n```\n", "never executed"),
    ],
)
def test_a_page_that_hides_a_block_is_found_out(text: str, words: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(text)
    with pytest.raises(Malformed, match=words):
        read_blocks(page)


def test_what_a_page_holds_is_read_as_it_stands(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        '* an item,\n    indented far\n\n```yaml title="a.yaml"\nextends: tiny\n```\n\n'
        "<!-- not run: needs hours -->\n```sh\nelf run owt-full\n```\n\n```sh\nelf run a.yaml\n```\n"
    )
    file, marked, run = read_blocks(page)
    assert (file.language, file.title, file.text, file.runs) == ("yaml", "a.yaml", "extends: tiny\n", False)
    assert (marked.mark, marked.runs) == ("needs hours", False)
    assert (run.line, run.mark, run.text, run.runs) == (13, None, "elf run a.yaml\n", True)


@pytest.mark.parametrize("page", sorted(ROOT.glob("*.md")), ids=lambda page: page.name)
def test_a_link_of_a_page_outside_the_site_leads_somewhere(page: Path) -> None:
    """Those of the site are checked when it is built."""
    targets = re.findall(r"\]\(([^)\s#]+)", page.read_text(encoding="utf-8"))
    gone = [each for each in targets if "://" not in each and not (page.parent / each).exists()]
    assert gone == []


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
    assert (tmp_path / "site" / "how-to" / "store" / "index.html").is_file()
