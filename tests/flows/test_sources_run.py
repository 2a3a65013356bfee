"""Training without a store, as people ask for it: what is planned, built, told and left."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import call, half_made

NUMBERS = ("--set", "train.latents.std=1.0", "train.latents.mean=-0.2")


def states(folder: Path, *arguments: str) -> dict[str, str]:
    steps = json.loads(call(folder, "plan", "tiny", "--json", *arguments))["steps"]
    return {step["step"]: step["state"] for step in steps}


def test_measured_and_live_do_not_go_together(elf: Callable[..., Any]) -> None:
    done = elf("run", "tiny", "--set", "compute.train.source=live")
    assert done.returncode == 2
    assert "train.latents.std is measured, which takes" in done.stderr
    assert not list(Path(done.args[0]).parent.glob("store"))


def test_a_plan_says_which_source_and_why(elf: Callable[..., Any]) -> None:
    said = elf("plan", "owt-full", "--set", "compute.train.source=live").stdout
    assert "Latents: live, encoded beside each training step: as compute.train.source asks." in said
    lines = {line.split()[0]: line.split()[2] for line in said.splitlines() if len(line.split()) > 3}
    assert (lines["encode"], lines["encode-validation"], lines["train"]) == ("skip", "skip", "build")
    why = elf("why", "owt-full", "encode", "--set", "compute.train.source=live").stdout
    assert "encode  8bbdd78d25d2  skip: " in why


@pytest.mark.slow
def test_a_run_without_its_store(whole: Path, tmp_path: Path) -> None:
    """The tokens and the encoder of a whole run, its latents gone."""
    shutil.copytree(whole / "store", tmp_path / "store", copy_function=shutil.copy)
    shutil.rmtree(tmp_path / "store" / "encode")
    asked = (*NUMBERS, "compute.train.source=rolling")
    assert states(tmp_path, *asked)["encode"] == "skip"
    said = call(tmp_path, "run", "tiny", *asked)
    assert "Latents: rolling, encoded ahead" in said
    assert not (tmp_path / "store" / "encode").exists()
    assert not half_made(tmp_path / "store")
    page = (tmp_path / "runs/tiny/report.html").read_text()
    assert "encode (never stored)" in page
    assert "shard_bytes" in page, "its settings are told all the same"
    assert "steps reused" in call(tmp_path, "run", "tiny", *NUMBERS), "another source is no other run"
    call(tmp_path, "run", "tiny", *NUMBERS, "--until", "encode")
    assert states(tmp_path, *asked)["encode"] == "hit"
