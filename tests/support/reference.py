"""Makes docs/reference.md from the code, so that it cannot be wrong.

.venv/bin/python tests/support/reference.py
"""

import ast
import inspect
import json
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import JsonValue
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from typer import Typer

from elf.flows.cli import app
from elf.pipeline.section import LINKED, RUNTIME, Section
from elf.stages.config import Experiment

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "reference.md"
HEAD = """# Reference

Made from the code by `python tests/support/reference.py`; a test keeps it true.

## Commands

Exit codes: 0 done, 1 failed, 2 the request is wrong, 130 interrupted, 143 terminated. `--set` and, after CONFIG,
`--force` take several values. A STAGE is a stage (`encode`: all its steps) or one step (`encode-validation`).

| environment | meaning |
|---|---|
| `ELF_STORE` | the store, unless `--store` names one |
| `ELF_REMOTE` | a remote that runs take what they miss from: `s3://BUCKET/PREFIX`, `gs://…`, `az://…`, `file:///DIR` |
| `ELF_REMOTE_LIMIT` | what was pulled takes at most this here: `500GB`, `64GiB`; else all the room there is |
| `ELF_DEBUG` | `1`: tracebacks, as `--debug` |
| `ELF_HOME` | the folder in which Prefect flow runs work (see `prefect.yaml`) |

"""
SETTINGS = """## Settings

A file holds these keys; `extends: NAME_OR_FILE` takes another file's first. Lists replace, mappings merge. A change of
a setting marked *runtime* rebuilds nothing; one marked *input* acts through the input it names; every other setting is
part of the key of its stage. `–` means that there is no default.

"""


def make_reference() -> str:
    """The whole page."""
    helps = "".join(f"```text\n{help_of(command)}\n```\n\n" for command in commands(app))
    return HEAD + helps + SETTINGS + "\n".join(sections(Experiment, "", {})).rstrip() + "\n"


def commands(owner: Typer) -> Iterator[str]:
    """All that ``elf`` knows, those of a group with its name before them."""
    for command in owner.registered_commands:
        assert command.callback is not None
        yield command.name or command.callback.__name__
    for group in owner.registered_groups:
        assert group.typer_instance is not None
        yield from (f"{group.name} {name}" for name in commands(group.typer_instance))


def help_of(command: str) -> str:
    """What ``elf COMMAND --help`` prints, 80 columns wide."""
    elf = Path(sys.executable).parent / "elf"
    done = subprocess.run(
        [str(elf), *command.split(), "--help"],
        env={**os.environ, "COLUMNS": "80", "TERMINAL_WIDTH": "80"},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def sections(kind: type[Section], place: str, known: dict[type[Section], str]) -> Iterator[str]:
    """A table for ``kind`` and then for the sections below it that stand nowhere else yet."""
    known[kind] = place
    told = docstrings(kind)
    yield f"### `{place}`\n" if place else "### top level\n"
    yield f"{textwrap.dedent(kind.__doc__ or '').strip().splitlines()[0]}\n"
    yield "| key | type | default | |\n|---|---|---|---|"
    below: list[tuple[type[Section], str]] = []
    for name, field in kind.model_fields.items():
        inner, many = section_in(field.annotation)
        mark = "runtime" if RUNTIME in field.metadata else "input" if LINKED in field.metadata else ""
        words = "; ".join(part for part in (told.get(name, ""), f"*{mark}*" if mark else "") if part)
        where = f"{place}.{name}".lstrip(".") + (".N" if many else "")
        if inner is not None and inner in known | {each: "" for each, _ in below}:
            first = known.get(inner) or next(at for each, at in below if each is inner)
            words = f"as `{first}`" + (f"; {words}" if words else "")
        elif inner is not None:
            below.append((inner, where))
        yield f"| `{name}` | {type_text(field)} | {default_text(field)} | {words} |"
    yield ""
    for inner, where in below:
        yield from sections(inner, where, known)


def docstrings(kind: type[Section]) -> dict[str, str]:
    """The strings that stand under the fields of a class, in one line each."""
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(body, ast.ClassDef)
    found = {
        name: text
        for base in kind.__bases__
        if base is not Section
        for name, text in docstrings(base).items()
    }
    for before, node in zip(body.body, body.body[1:], strict=False):
        if (
            isinstance(before, ast.AnnAssign)
            and isinstance(before.target, ast.Name)
            and isinstance(node, ast.Expr)
        ):
            text = ast.literal_eval(node.value)
            found[before.target.id] = (
                re.sub(r"\s+", " ", text).strip().rstrip(".").replace("``", "`").replace("|", "\\|")
            )
    return found


def section_in(annotation: Any) -> tuple[type[Section] | None, bool]:
    """The section a field holds, if any, and whether it holds a list of them."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation, False
    for argument in get_args(annotation):
        inner, many = section_in(argument)
        if inner is not None:
            return inner, many or get_origin(annotation) is tuple
    return None, False


def type_text(field: FieldInfo) -> str:
    """A type as a reader of YAML knows it."""
    limits = [re.sub(r"^(Ge|Gt|Le|Lt)\(\w\w=(.+)\)$", _limit, repr(mark)) for mark in field.metadata]
    shown = " and ".join(limit for limit in limits if limit[:1] in "≥>≤<")
    return (_type(field.annotation) + (f", {shown}" if shown else "")).replace("|", "\\|")


def _limit(match: re.Match[str]) -> str:
    return {"Ge": "≥", "Gt": ">", "Le": "≤", "Lt": "<"}[match[1]] + f" {match[2]}"


def _type(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        limits = [re.sub(r"^.*?(Ge|Gt)\(\w\w=(.+?)\).*$", _limit, repr(mark)) for mark in arguments[1:]]
        shown = " and ".join(limit for limit in limits if limit[:1] in "≥>")
        return _type(arguments[0]) + (f", {shown}" if shown else "")
    if origin is Literal:
        return ", ".join(
            f"`{str(value).lower() if value in (True, False) else value}`" for value in arguments
        )
    if origin in (Union, UnionType):
        return " or ".join(_type(each) for each in arguments)
    if origin is tuple:
        return f"list of {_type(arguments[0])}"
    if origin is Mapping:
        return f"mapping of names to {_type(arguments[1])}"
    if annotation is JsonValue:
        return "any value"
    if annotation is type(None):
        return "null"
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return "section"
    names = {int: "integer", float: "number", str: "text", bool: "true or false"}
    return names[annotation]


def default_text(field: FieldInfo) -> str:
    value = field.default
    if value is PydanticUndefined:
        return "–"
    if isinstance(value, Section):
        return "its own"
    if isinstance(value, tuple):
        parts = [
            part.model_dump(exclude_defaults=True) if isinstance(part, Section) else part for part in value
        ]
        return f"`{json.dumps(parts)}`"
    return "null" if value is None else f"`{json.dumps(value, ensure_ascii=False)}`"


if __name__ == "__main__":
    PAGE.write_text(make_reference(), encoding="utf-8")
