"""A whole experiment through the command line: built once, reused, explained, killed and gone on with."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ELF = str(Path(sys.executable).parent / "elf")


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    folder.mkdir(exist_ok=True)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ELF_")}
    return subprocess.Popen(
        [ELF, *arguments],
        cwd=folder,
        env={**kept, "COLUMNS": "80", "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def call(folder: Path, *arguments: str) -> str:
    """What a command that must succeed prints to its standard output."""
    process = start(folder, *arguments)
    out, err = process.communicate(timeout=280)
    assert process.returncode == 0, err
    return out


def planned(folder: Path, *arguments: str) -> dict[str, bool]:
    """Whether each step is a hit."""
    steps = json.loads(call(folder, "plan", "tiny", "--json", *arguments))["steps"]
    return {step["step"]: step["state"] == "hit" for step in steps}


def contents(folder: Path) -> dict[str, str]:
    """Digest of what each step holds; a report tells times and so is left out."""
    found: dict[str, str] = {}
    for link in sorted((folder / "runs/tiny").iterdir()):
        manifest = link / "manifest.json"
        if manifest.is_file() and link.name != "report":
            found[link.name] = json.loads(manifest.read_text())["content"]
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which ``elf run tiny`` ran undisturbed."""
    folder = tmp_path_factory.mktemp("whole")
    said = call(folder, "run", "tiny")
    assert said.rstrip().endswith("runs/tiny/report.html")
    return folder


def test_it_ends_with_a_report_of_everything(whole: Path) -> None:
    page = (whole / "runs/tiny/report.html").read_text()
    assert "<svg" in page
    for row in ("ode", "sde", "real", "replaced", "unigram"):
        assert row in page
    assert not list((whole / "store/.building").glob("*/*[0-9a-f]/")), "something half-built is left"


def test_a_second_run_reuses_all_and_says_so(whole: Path) -> None:
    said = call(whole, "run", "tiny")
    assert "built" not in said.replace("Nothing to build", "")
    assert "all 19 steps reused" in said


@pytest.mark.parametrize(
    ("setting", "rebuilt"),
    [
        ("train.latents.std=0.3", "train"),
        ("train.model.hidden=32", "train"),
        ("train.seed=1", "train"),
        ("compute.encode.batch_tokens=64", None),
        ("encode.layer=0", "encode"),
        ("tokenize.length=16", "tokenize"),
        ("sample.0.steps=5", "sample-ode"),
    ],
)
def test_a_change_rebuilds_nothing_before_it(whole: Path, setting: str, rebuilt: str | None) -> None:
    hits = planned(whole, "--set", setting)
    order = list(hits)
    before = order if rebuilt is None else order[: order.index(rebuilt)]
    assert all(hits[name] for name in before)
    if rebuilt is not None:
        assert not hits[rebuilt]
        assert not hits["report"]


@pytest.mark.parametrize(
    ("step", "setting", "named"),
    [
        ("train", "train.latents.std=0.3", "train.latents.std"),
        ("train", "encode.dtype=float32", "encode.dtype"),
        ("tokenize", "data.train.text=body", "data.train.text"),
        ("sample-ode", "sample.0.guidance=2.5", "sample.0.guidance"),
    ],
)
def test_why_names_the_setting(whole: Path, step: str, setting: str, named: str) -> None:
    assert named in call(whole, "why", "tiny", step, "--set", setting)


Ready = Callable[[Path], bool]


def encoding(store: Path) -> bool:
    return any(store.glob(".building/encode/*/plain/parts/*")) or any(store.glob("encode/*"))


def training(store: Path) -> bool:
    return any(path.stat().st_size > 900 for path in store.glob(".building/train/*/metrics.jsonl"))


def test_killed_in_encode_and_in_train_it_ends_with_the_same_bytes(whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "killed"
    for ready in (encoding, training):
        _kill_when(ready, folder)
    call(folder, "run", "tiny")
    assert "Going on after step" in (folder / "runs/tiny/train/aux/log.txt").read_text()
    assert contents(folder) == contents(whole)


def _kill_when(ready: Ready, folder: Path) -> None:
    process: Any = start(folder, "run", "tiny")
    deadline = time.monotonic() + 200
    while not ready(folder / "store"):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
