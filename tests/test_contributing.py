"""CONTRIBUTING.md: its examples work, and what it, the hooks and the forge's file name is there."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import contributing
import golden_keys
import pytest
import yaml
from contributing import PAGE, ROOT

ASK = """
import json
from golden_keys import SHIPPED, keys_of, plan_shipped
from elf.pipeline.config import load_experiment
from elf.stages.config import Experiment
from elf.stages.experiment import plan_experiment
tiny = load_experiment("tiny", Experiment, [], SHIPPED)
asked = load_experiment("tiny", Experiment, ["lengths.bins=4"], SHIPPED)
plans = {"shipped": plan_shipped("tiny"), "tiny": plan_experiment(tiny), "asked": plan_experiment(asked)}
print(json.dumps({name: keys_of(plan) for name, plan in plans.items()}))
"""
FORGE = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
HOOKS = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tree in which all examples were followed."""
    folder = tmp_path_factory.mktemp("house")
    contributing.copy_tree(folder)
    contributing.contribute(folder)
    return folder


def call(house: Path, *command: str) -> str:
    done = subprocess.run(
        command,
        cwd=house,
        env=contributing.environment(house),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_examples_pass_their_tests_and_the_rules_of_the_rooms(house: Path) -> None:
    tests = [name for name in contributing.new_files() if name.startswith("tests/")]
    assert len(tests) == 4
    rule = "tests/test_architecture.py::test_imports_point_the_right_way"
    rules = [f"{rule}[{path}]" for path in sorted(contributing.touched()) if not path.startswith("tests/")]
    said = call(house, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests, *rules)
    assert re.search(rf"^{len(tests) + len(rules)} passed in", said, re.MULTILINE), said


def test_the_examples_are_written_as_the_rest_is(house: Path) -> None:
    ruff = contributing.beside_python("ruff")
    call(house, ruff, "check", "--no-cache", *contributing.touched())
    call(house, ruff, "format", "--check", "--no-cache", *contributing.touched())


def test_no_keys_move_but_those_of_the_stage_with_another_version(house: Path) -> None:
    after = json.loads(call(house, sys.executable, "-c", ASK))
    before = golden_keys.read_recorded()["tiny"]
    moved = {step.split("-")[0] for step in before if after["shipped"][step]["key"] != before[step]["key"]}
    assert moved == {"evaluate", "report"}
    assert after["shipped"].keys() == before.keys()
    assert after["asked"].keys() == {*before, "lengths"}
    assert all(after["asked"][step] == after["tiny"][step] for step in before)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_stage_is_built_and_reused(house: Path) -> None:
    run = (contributing.beside_python("elf"), "run", "tiny", "--set", "lengths.bins=4", "--until", "lengths")
    call(house, *run)
    found = json.loads((house / "runs/tiny/lengths/lengths.json").read_text())
    assert (len(found["rows"]), sum(found["rows"])) == (4, 256)
    assert "steps reused" in call(house, *run)


def test_every_path_that_is_named_is_there() -> None:
    page = PAGE.read_text()
    named = set(re.findall(r"`([\w.-]+/[\w./-]*|[A-Z]+\.md)`", page)) | set(re.findall(r"\]\((.*?)\)", page))
    assert len(named) > 15
    assert not {name for name in named if not (ROOT / name).exists()}


def targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def steps(job: dict[str, Any]) -> list[str]:
    return [step["run"] for step in job["steps"] if "run" in step]


def test_what_make_is_asked_for_is_a_target() -> None:
    called = [line for job in FORGE["jobs"].values() for run in steps(job) for line in run.splitlines()]
    in_page = re.findall(r"^(make [a-z-]+)|`(make\s[a-z-]+)`", PAGE.read_text(), re.MULTILINE)
    asked = {line.split()[1] for line in (*called, *(a or b for a, b in in_page)) if line.startswith("make")}
    assert asked >= {"lint", "test", "test-slow", "docs", "docs-test"}
    assert asked <= targets()
    assert "lint" in re.findall(r"^test:(.*)", (ROOT / "Makefile").read_text(), re.MULTILINE)[0]


def test_the_forge_runs_all_on_pythons_that_are_supported() -> None:
    jobs = FORGE["jobs"]
    assert [steps(job) for job in jobs.values()] == [
        ["make test"],
        ["make test-slow"],
        ["make docs", "make docs-test"],
    ]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lowest = project["requires-python"].removeprefix(">=")
    assert jobs["test"]["strategy"]["matrix"]["python"] == [lowest, "3.13"]
    asked = [
        step["with"]
        for job in jobs.values()
        for step in job["steps"]
        if "python-version" in step.get("with", {})
    ]
    assert len(asked) == len(jobs)
    assert all(each["cache"] == "pip" for each in asked)
    assert all((ROOT / path).is_file() for each in asked for path in each["cache-dependency-path"].split())
    settings = set(re.findall(r"^([A-Z_]+) \?=", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert FORGE["env"].keys() <= settings


def test_hooks_fetch_nothing_and_are_what_lint_runs() -> None:
    (repo,) = HOOKS["repos"]
    assert repo["repo"] == "local"
    entries = [hook["entry"].split() for hook in repo["hooks"]]
    assert all(hook["language"] == "system" for hook in repo["hooks"])
    assert all(entry[0] == "git" or entry[0].startswith(".venv/bin/") for entry in entries)
    lint = re.findall(r"^\t\$\(BIN\)/(\S+)( check| format)?", (ROOT / "Makefile").read_text(), re.MULTILINE)
    linters = {
        (f".venv/bin/{name}", command.strip()) for name, command in lint if name in ("ruff", "pyright")
    }
    assert linters <= {(entry[0], entry[1] if len(entry) > 1 else "") for entry in entries}
