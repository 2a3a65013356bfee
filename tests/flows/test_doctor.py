"""The doctor: every line is good, a note, or bad with its cure."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from elf.cache.store import Store
from elf.flows.doctor import Finding, look_at_disk, look_at_pins, print_finding
from elf.stages.disk import known_disk

Elf = Callable[..., subprocess.CompletedProcess[str]]


def test_a_fit_machine_passes(elf: Elf) -> None:
    done = elf("doctor", "--json", HF_HUB_OFFLINE="1")
    assert done.returncode == 0, done.stdout
    found = {each["subject"]: each for each in json.loads(done.stdout)}
    assert found.keys() >= {
        "python",
        "versions",
        "store",
        "torch",
        "hub",
        "prefect",
        "distributed",
        "accelerate",
    }
    assert found["hub"]["verdict"] == "note"
    assert "quickstart" in found["hub"]["cure"]


def test_a_store_that_cannot_be_written_is_bad_and_has_a_cure(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    (finding,) = look_at_disk(Store(tmp_path / "file" / "store"))
    assert finding.verdict == "bad"
    assert "ELF_STORE" in finding.cure


def test_long_findings_go_on_under_themselves(capsys: pytest.CaptureFixture[str]) -> None:
    long = Finding("store", "bad", "words " * 30, "a cure " * 30)
    print_finding(long, Console(width=60, force_terminal=True, color_system=None))
    first, *others = capsys.readouterr().out.splitlines()
    assert max(map(len, (first, *others))) <= 60
    assert first.startswith("bad   store       words")
    assert all(line.startswith(" " * 18) for line in others)
    print_finding(long, Console(soft_wrap=True))
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_looking_at_the_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    (finding,) = look_at_disk(Store(tmp_path / "store"))
    assert finding.verdict in ("good", "bad")
    assert list(tmp_path.iterdir()) == []


def test_the_speed_of_the_disk_is_that_of_plans(tmp_path: Path) -> None:
    known = known_disk(tmp_path)
    assert known is not None
    (finding,) = look_at_disk(Store(tmp_path / "store"))
    assert (
        f"free; {known} (through to the disk, and from it with nothing in memory; measured " in finding.words
    )
    assert "writes 500 MB/s, reads 1.00 GB/s" in finding.words
    assert known_disk(tmp_path) == known


def test_installed_packages_are_the_pinned_ones() -> None:
    (finding,) = look_at_pins()
    assert finding.verdict == "good", finding.words
