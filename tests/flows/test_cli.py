"""The command line as people and scripts meet it: exit codes, words, JSON, speed."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Elf = Callable[..., subprocess.CompletedProcess[str]]
COMMANDS = (
    "run",
    "plan",
    "why",
    "runs",
    "show",
    "sample",
    "compare",
    "doctor",
    "up",
    "down",
    "status",
    "cache",
)


def test_help_names_every_command(elf: Elf) -> None:
    done = elf("--help")
    assert done.returncode == 0
    assert all(f"\n  {command} " in done.stdout for command in COMMANDS)
    assert "..." not in done.stdout.split("Commands:")[1]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(elf: Elf, command: str) -> None:
    done = elf(command, "--help")
    assert done.returncode == 0
    assert done.stdout.startswith("Usage: elf ")


def test_version(elf: Elf) -> None:
    done = elf("--version")
    assert (done.returncode, done.stdout.split()[0]) == (0, "elf")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("plan", "quikstart"), ("quikstart", "Did you mean 'quickstart'?")),
        (("plan", "no/such.yaml"), ("no/such.yaml", "does not exist")),
        (("plan", "tiny", "--set", "train.stepz=3"), ("train.stepz", "did you mean `steps`?")),
        (("plan", "tiny", "--set", "train.steps=many"), ("train.steps", "integer")),
        (("plan", "tiny", "--set", "nonsense"), ("nonsense", "section.key=value")),
        (("run", "tiny", "--only", "trian"), ("trian", "Did you mean 'train'?")),
        (("run", "tiny", "--until", "nowhere"), ("nowhere", "It has:")),
        (("run", "tiny", "--force", "nothing"), ("nothing", "It has:")),
        (("why", "tiny", "encod"), ("encod", "Did you mean 'encode'?")),
    ],
)
def test_a_wrong_request_ends_with_2_and_one_paragraph(
    elf: Elf, arguments: tuple[str, ...], words: tuple[str, ...], tmp_path: Path
) -> None:
    done = elf(*arguments)
    assert done.returncode == 2
    assert all(word in done.stderr for word in words)
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "store").exists()
    assert not (tmp_path / "runs").exists()


def test_usage_errors_end_with_2(elf: Elf) -> None:
    assert elf("plan").returncode == 2
    assert elf("plan", "tiny", "--no-such-flag").returncode == 2
    assert elf("dance").returncode == 2


@pytest.mark.parametrize("how", ["option", "environment"])
def test_tracebacks_come_only_when_asked_for(elf: Elf, how: str) -> None:
    done = elf("plan", "nowhere", "--debug") if how == "option" else elf("plan", "nowhere", ELF_DEBUG="1")
    assert done.returncode == 2
    assert "Traceback" in done.stderr


def test_an_unknown_run_is_a_failure_that_says_what_there_is(elf: Elf) -> None:
    done = elf("show", "yesterday")
    assert done.returncode == 1
    assert "yesterday" in done.stderr


def test_no_runs_is_no_error(elf: Elf) -> None:
    done = elf("runs")
    assert done.returncode == 0
    assert "elf run quickstart" in done.stdout
    assert json.loads(elf("runs", "--json").stdout) == []


def test_only_without_its_inputs_fails_naming_them(elf: Elf) -> None:
    done = elf("run", "tiny", "--only", "train")
    assert done.returncode == 1
    assert "'tokenize'" in done.stderr


@pytest.mark.parametrize("name", ["tiny", "quickstart", "owt-full"])
def test_a_plan_fits_80_columns_and_writes_nothing(elf: Elf, name: str, tmp_path: Path) -> None:
    done = elf("plan", name)
    assert done.returncode == 0
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "Disk: needs" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_the_plan_of_owt_full_says_that_the_disk_is_too_small(elf: Elf) -> None:
    stored = ("--set", "compute.train.source=store")
    plan = json.loads(elf("plan", "owt-full", "--json", *stored).stdout)
    assert plan["bytes_needed"] > 9e12
    assert all(step["state"] == "build" for step in plan["steps"])
    by_name = {step["step"]: step for step in plan["steps"]}
    assert by_name["encode"]["bytes"] == pytest.approx(9.04e9 * 0.999 * 512 * 2, rel=0.01)
    if plan["bytes_free"] < plan["bytes_needed"]:
        assert "too little" in " ".join(elf("plan", "owt-full", *stored).stdout.split())


def test_the_store_is_named_by_option_then_environment_then_folder(elf: Elf, tmp_path: Path) -> None:
    def store(*arguments: str, **environment: str) -> str:
        return json.loads(elf("plan", "tiny", "--json", *arguments, **environment).stdout)["store"]

    assert store() == str(tmp_path / "store")
    assert store(ELF_STORE="/tmp/b") == "/tmp/b"
    assert store("--store", "/tmp/a", ELF_STORE="/tmp/b") == "/tmp/a"


def test_several_settings_after_one_flag_reach_the_plan(elf: Elf) -> None:
    def keys(*settings: str) -> dict[str, str]:
        steps = json.loads(elf("plan", "tiny", "--json", *settings).stdout)["steps"]
        return {step["step"]: step["key"] for step in steps}

    plain, changed = keys(), keys("--set", "train.seed=1", "encode.dtype=float32")
    assert plain["tokenize"] == changed["tokenize"]
    assert plain["encode"] != changed["encode"]
    assert plain["train"] not in (changed["train"], keys("--set", "encode.dtype=float32")["train"])


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_run_says_that_it_goes_on_and_does(
    elf: Elf, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    command = [str(Path(sys.executable).parent / "elf"), "run", "tiny", "--until", "tokenize"]
    running = subprocess.Popen(
        command,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert running.stdout is not None
    for line in running.stdout:
        if line.startswith("begins  tokenize"):
            break
    running.send_signal(number)
    _, said = running.communicate(timeout=60)
    assert running.returncode == code
    assert said.strip().endswith("the same command goes on")
    assert "Traceback" not in said
    again = elf("run", "tiny", "--until", "tokenize")
    assert again.returncode == 0, again.stderr
    assert "reused  fetch-train" in again.stdout
