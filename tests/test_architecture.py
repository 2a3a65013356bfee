"""The rules of the rooms, checked as text so that none can rot: who imports whom, names, packaging, lengths."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROOMS = ("cache", "pipeline", "stages", "flows", "configs")
OURS = {
    "cache": {"cache"},
    "pipeline": {"pipeline", "cache"},
    "stages.model": {"stages.model"},
    "stages": {"stages", "stages.model", "pipeline", "cache"},
    "flows": {"flows", "stages", "stages.model", "pipeline", "cache", "configs"},
    "configs": set[str](),
}
BANNED = {
    "cache": {"torch", "prefect", "pydantic", "transformers", "accelerate", "datasets", "typer", "rich"},
    "pipeline": {"torch", "prefect", "transformers", "accelerate", "datasets", "typer", "rich"},
    "stages": {"prefect", "typer", "rich"},
}
HEAVY = (
    "torch",
    "transformers",
    "datasets",
    "accelerate",
    "dask",
    "distributed",
    "matplotlib",
    "prefect",
    "zarr",
)
LONGEST = 400
MODULES = sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))


def room_of(dotted: str) -> str:
    return "stages.model" if dotted.startswith("stages.model") else dotted.split(".")[0]


def imports_of(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} is a relative import"
            found.add(node.module or "")
    return found


def test_there_is_something_to_check() -> None:
    assert {path.relative_to(ROOT).parts[0] for path in MODULES} == set(ROOMS)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_the_right_way(path: Path) -> None:
    here = room_of(".".join(path.relative_to(ROOT).with_suffix("").parts))
    for name in imports_of(path):
        top = name.split(".")[0]
        if top == "elf":
            assert room_of(name.removeprefix("elf.")) in OURS[here], f"{here} may not import {name}"
        elif here == "stages.model":
            assert top == "torch" or top in sys.stdlib_module_names, f"{here} may not import {name}"
        else:
            assert top not in BANNED.get(here, set()), f"{here} may not import {name}"


def test_no_module_shadows_the_standard_library() -> None:
    assert not {path.stem for path in MODULES} & sys.stdlib_module_names


def test_the_packaging_table_is_what_lies_on_disk() -> None:
    table = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    on_disk = {path.parent.relative_to(ROOT).parts for path in MODULES if path.name == "__init__.py"}
    assert {".".join(("elf", *parts)) for parts in on_disk} == set(table["packages"])
    assert {path.parent.relative_to(ROOT).parts for path in MODULES} == on_disk
    assert {f"elf.{room}" for room in ROOMS} == set(table["package-dir"])
    assert all((ROOT / room).samefile(ROOT / "typings" / "elf" / room) for room in ROOMS)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_stay_short(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= LONGEST


@pytest.mark.parametrize(
    "module",
    [
        "elf.flows.cli",
        "elf.flows.commands_table",
        "elf.stages.config",
        "elf.stages.experiment",
        "elf.stages.estimate",
        "elf.stages.ledger",
    ],
)
def test_looking_at_an_experiment_loads_nothing_heavy(module: str) -> None:
    probe = f"import sys, {module}; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_dependency_has_its_reason() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    names = {re.split(r"[\[<>=]", each)[0] for each in asked}
    page = (ROOT / "docs/dependencies.md").read_text()
    assert set(re.findall(r"^\| ([a-z][a-z0-9-]*) \|", page, re.MULTILINE)) - {"package"} == names
