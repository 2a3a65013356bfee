"""``elf init``: a small project of one's own, which runs at once and is there to be changed."""

import ast
import json
import re
import sysconfig
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from shlex import quote
from string import Template

from elf.cache.files import make_folder, write_atomic
from elf.pipeline.errors import Misconfigured

PARTS = ("experiment.yaml", "README.md")
TEXTS = Path("data", "texts.jsonl")
SHORTEST = 300
"""Characters of a text that is worth reading."""


def make_project(folder: str) -> None:
    """Write configuration, README and some text. Raises Misconfigured where the folder holds anything already."""
    place = Path(folder)
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise Misconfigured(f"{place.absolute()} is there and not empty; name a new folder: elf init mine.")
    templates = files("elf.configs") / "own-project"
    make_folder(place / TEXTS.parent)
    lines = [json.dumps({"id": name, "text": text}, ensure_ascii=False) for name, text in example_texts()]
    write_atomic(place / TEXTS, "\n".join(lines) + "\n")
    for part in PARTS:
        template = Template((templates / part).read_text(encoding="utf-8"))
        write_atomic(place / part, template.substitute(name=_name(place), texts=TEXTS))
    print(f"{place / 'experiment.yaml'}: the settings, with {TEXTS} of {len(lines):,} texts.")
    print(f"Next: cd {quote(str(place))} && elf run experiment.yaml")


def _name(place: Path) -> str:
    """The folder's name, as a run may be called."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", place.resolve().name).strip("-_") or "mine"


def example_texts() -> Iterator[tuple[str, str]]:
    """Names and docstrings of Python's standard library: English prose that every machine has."""
    library = Path(sysconfig.get_path("stdlib"))
    for path in sorted(library.glob("*.py")):
        tree = ast.parse(path.read_bytes())
        for node in ast.walk(tree):
            if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            text = ast.get_docstring(node)
            if text is not None and len(text) >= SHORTEST:
                yield f"{path.stem}:{getattr(node, 'name', 'module')}", text
