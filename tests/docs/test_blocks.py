"""Every shell block of the pages, executed: a page is one bash session in a folder of its own. `make docs-test`.

What pages take for granted is made once: a store in which `tiny` and `quickstart` were run, from what ships with the
product and from PyPI; and beside it in each page's folder files `texts.jsonl` and `texts.txt`, and what `make
quickstart` needs.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

import pytest
from commands import ELF, copy_store
from pages import OWN_PROJECT, PAGES, ROOT, Block, read_blocks

from elf.flows.commands_init import example_texts

BIN = ROOT / ".venv" / "bin"
PATIENCE = 1500
"""Seconds a page may take on a slow machine."""
RUN = [page for page in PAGES if any(block.runs for block in read_blocks(page))]
SMALLER: Mapping[str, Mapping[str, str]] = {
    "README.md": {"train: {steps: 600}": "train: {steps: 40}"},
    "docs/tutorial.md": {
        "elf run experiment.yaml": "elf run experiment.yaml --set train.steps=40",
    },
    "docs/how-to/hosts.md": {"8786": "PORT"},
    "configs/own-project/README.md": {"train.steps=2000": "train.steps=60"},
}
"""Sizes that are made smaller, by page, and a port that may be taken: a free one stands in its place."""
OWN_STEPS = ("train: {steps: 200}", "train: {steps: 40}")
"""The same in the settings that `elf init` writes."""


@dataclass(frozen=True, slots=True)
class World:
    """A store with what two shipped configurations make, and the environment of every page but its home."""

    store: Path
    environment: Mapping[str, str]


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("world")
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("ELF_", "PREFECT_", "XDG_")) and name not in ("VIRTUAL_ENV", "MPLCONFIGDIR")
    }
    environment = kept | {
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "HOME": str(folder),
        "XDG_CACHE_HOME": str(folder / "cache"),
        "MPLCONFIGDIR": str(folder / "matplotlib"),
        "COLUMNS": "80",
        "DO_NOT_TRACK": "1",
    }
    user = Path.home() / ".config" / "pip" / "pip.conf"
    if user.exists():
        environment.setdefault("PIP_CONFIG_FILE", str(user))
    for config in ("tiny", "quickstart"):
        call(folder, environment, "run", config)
    return World(folder / "store", environment)


def call(folder: Path, environment: Mapping[str, str], *arguments: str) -> None:
    done = subprocess.run(
        [ELF, *arguments], cwd=folder, env=dict(environment), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def environment(world: World, tmp_path: Path) -> dict[str, str]:
    """That of a page, whose home is its own."""
    home = tmp_path / "home"
    home.mkdir()
    return {**world.environment, "HOME": str(home)}


@pytest.fixture
def folder(world: World, environment: Mapping[str, str], tmp_path: Path) -> Path:
    """The folder of a page: texts, both runs, and what stands for a checkout with everything installed."""
    folder = tmp_path / "folder"
    folder.mkdir()
    copy_store(world.store, folder / "store", without=())
    lines = [json.dumps({"id": name, "text": text}) for name, text in example_texts()]
    (folder / "texts.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "texts.txt").write_text("\n\n".join(text for _, text in example_texts()) + "\n")
    (folder / ".venv").symlink_to(ROOT / ".venv")
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, folder / name)
        os.utime(folder / name, (0, 0))  # older than the installation: `make` has nothing to install
    for config in ("tiny", "quickstart"):
        call(folder, environment, "run", config)
    return folder


def script_of(blocks: Iterable[Block], changes: Mapping[str, str], place: Path) -> str:
    """One session: titled blocks become files, shell blocks are executed; ``place`` says which one is."""
    parts = ["set -eo pipefail"]
    for block in blocks:
        text = block.text
        for old, new in changes.items():
            text = text.replace(old, new)
        if block.title is not None:
            parts.append(f"cat > {quote(block.title)} <<'END OF THE FILE'\n{text}END OF THE FILE")
        elif block.runs:
            parts.append(f"echo {quote(block.place)} > {quote(str(place))}\n{text}")
    return "\n".join(parts)


@contextmanager
def session(script: str, folder: Path, environment: Mapping[str, str], log: Path) -> Iterator[int]:
    """The exit code of a script in bash. Whatever it left running is ended afterwards."""
    with log.open("w") as output:
        process = subprocess.Popen(
            ["bash", "-c", script],
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            yield process.wait(PATIENCE)
        finally:
            for number in (signal.SIGTERM, signal.SIGKILL):
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
                    time.sleep(1)
            process.wait()
            if (folder / ".elf").exists():
                subprocess.run([ELF, "down"], cwd=folder, env=dict(environment), check=True, stdout=output)


def run_page(
    blocks: list[Block], changes: Mapping[str, str], folder: Path, environment: Mapping[str, str]
) -> None:
    place, log = folder.parent / "place.txt", folder.parent / "log.txt"
    script = script_of(blocks, changes, place)
    with session(script, folder, environment, log) as code:
        said = "\n".join(log.read_text(errors="replace").splitlines()[-60:])
        assert code == 0, f"{place.read_text().strip()} ended with exit code {code}:\n{said}"


@pytest.mark.docs
@pytest.mark.timeout(2 * PATIENCE)
@pytest.mark.parametrize(
    "page",
    [page for page in RUN if page != OWN_PROJECT],
    ids=lambda page: page.relative_to(ROOT).as_posix(),
)
def test_the_blocks_of_a_page_run(page: Path, folder: Path, environment: Mapping[str, str]) -> None:
    changes = dict(SMALLER.get(page.relative_to(ROOT).as_posix(), {}))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    run_page(
        read_blocks(page),
        {old: new.replace("PORT", port) for old, new in changes.items()},
        folder,
        environment,
    )


@pytest.mark.docs
@pytest.mark.timeout(2 * PATIENCE)
def test_the_blocks_of_a_new_projects_page_run(folder: Path, environment: Mapping[str, str]) -> None:
    """Those of the page that `elf init` writes, in the project."""
    call(folder, environment, "init", "mine")
    project = folder / "mine"
    settings = (project / "experiment.yaml").read_text()
    assert OWN_STEPS[0] in settings
    (project / "experiment.yaml").write_text(settings.replace(*OWN_STEPS))
    changes = SMALLER[OWN_PROJECT.relative_to(ROOT).as_posix()]
    own = {**environment, "ELF_STORE": str(folder / "store")}
    run_page(read_blocks(project / "README.md"), changes, project, own)


def test_what_is_made_smaller_stands_on_its_page() -> None:
    for name, changes in SMALLER.items():
        blocks = read_blocks(ROOT / name)
        for old in changes:
            assert any(old in block.text for block in blocks), f"{name} has no {old!r} any more"


def test_a_session_goes_block_by_block_and_stops_at_what_fails(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        '```yaml title="size.txt"\n2000\n```\n\n```sh\nmkdir deep && cd deep\n```\n\n'
        "<!-- not run: needs hours -->\n```sh\ntouch ../no\n```\n\n"
        "```sh\ncat ../size.txt > ../yes\nfalse\ntouch ../no\n```\n"
    )
    (tmp_path / "folder").mkdir()
    with pytest.raises(AssertionError, match=r"page.md:14 ended with exit code 1"):
        run_page(read_blocks(page), {"2000": "40"}, tmp_path / "folder", os.environ)
    assert (tmp_path / "folder" / "yes").read_text() == "40\n"
    assert not (tmp_path / "folder" / "no").exists()


def test_what_a_page_leaves_running_is_ended(tmp_path: Path) -> None:
    with session("sleep 600 & echo $!", tmp_path, os.environ, tmp_path / "log.txt") as code:
        assert code == 0
        left = int((tmp_path / "log.txt").read_text())
    stat = Path(f"/proc/{left}/stat")
    assert not stat.exists() or stat.read_text().split()[2] == "Z"
