"""The worked examples of CONTRIBUTING.md, made in a copy of the tree.

A block of Python that begins with ``# a/path.py`` is that file. A block of ``diff`` changes files that are there:
below ``--- a/path.py`` stand changes, ``@@`` between two of them. Of a change the lines with a space and ``-`` must
stand in the file exactly once; those with a space and ``+`` take their place.
"""

import os
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "CONTRIBUTING.md"
COPIED = (
    *("cache", "pipeline", "stages", "flows", "configs", "typings"),
    *("tests/support", "tests/configs", "tests/stages/model", "tests/test_architecture.py", "pyproject.toml"),
)


def blocks(kind: str) -> list[str]:
    """What stands in the page's blocks of code of a kind."""
    return re.findall(rf"^```{kind}\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def new_files() -> dict[str, str]:
    """Files that the examples add, by path."""
    found: dict[str, str] = {}
    for block in blocks("python"):
        name, _, body = block.partition("\n")
        assert name.startswith("# "), f"a block of CONTRIBUTING.md does not say which file it is: {name}"
        found[name.removeprefix("# ")] = body
    return found


def changes() -> list[tuple[str, str, str]]:
    """Changes of files that are there: path, the text before, the text after."""
    found: list[tuple[str, str, str]] = []
    for block in blocks("diff"):
        for part in re.split(r"^--- ", block, flags=re.MULTILINE)[1:]:
            path, _, body = part.partition("\n")
            for change in re.split(r"^@@\n", body, flags=re.MULTILINE):
                lines = [line if line else " " for line in change.splitlines()]
                before, after = (
                    "".join(f"{line[1:]}\n" for line in lines if line[0] in kept) for kept in (" -", " +")
                )
                found.append((path, before, after))
    return found


def copy_tree(folder: Path) -> None:
    """What the examples need of the tree."""
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, symlinks=True)
        else:
            shutil.copy(ROOT / name, folder / name)


def touched() -> set[str]:
    """Files that are new or changed."""
    return {*new_files(), *(name for name, *_ in changes())}


def contribute(folder: Path) -> None:
    """Make every example in the copy."""
    for name, text in new_files().items():
        assert not (folder / name).exists(), f"CONTRIBUTING.md would add {name}, which is there"
        (folder / name).write_text(text)
    for name, before, after in changes():
        path = folder / name
        text = f"\n{path.read_text()}"
        count = text.count(f"\n{before}")
        assert count == 1, (
            f"CONTRIBUTING.md changes these lines of {name}; they stand in it {count} times:\n{before}"
        )
        path.write_text(text.replace(f"\n{before}", f"\n{after}")[1:])


def environment(folder: Path) -> Mapping[str, str]:
    """In which ``elf`` is the copy."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ELF_", "PYTEST_"))}
    path = f"{folder / 'typings'}{os.pathsep}{folder / 'tests/support'}"
    return {**kept, "PYTHONPATH": path, "XDG_CACHE_HOME": str(folder / "cache-home"), "OMP_NUM_THREADS": "1"}


def beside_python(name: str) -> str:
    """A program of the environment that the tests run in."""
    return str(Path(sys.executable).parent / name)
