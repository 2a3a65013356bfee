"""``elf plan`` prices before anything is paid, and ``elf run`` does not start what cannot fit."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from elf.flows.cli import main
from elf.pipeline.wording import about, about_seconds, amount_text, bytes_text

Elf = Callable[..., subprocess.CompletedProcess[str]]
HUGE = "data.train.asset.expect_bytes=10000000000000000"


def test_the_table_and_the_json_have_the_same_numbers(elf: Elf) -> None:
    printed, plan = elf("plan", "quickstart").stdout, json.loads(elf("plan", "quickstart", "--json").stdout)
    lines = printed.splitlines()
    assert lines[0].split() == ["step", "key", "rows", "tokens", "bytes", "time"]
    for step, line in zip(plan["steps"], lines[1:], strict=False):
        amounts = [about(amount_text(step["rows"])), about(amount_text(step["tokens"]))]
        figures = [*amounts, about(bytes_text(step["bytes"])), about_seconds(step["seconds"])]
        wanted = " ".join([step["step"], step["key"][:12], "build", *figures])
        assert " ".join(line.split()) == wanted
    assert about_seconds(plan["seconds"]) in printed
    assert about(bytes_text(plan["bytes_needed"])) in printed
    even = plan["break_even"]
    assert even["words"] in printed
    assert about_seconds(even["live_seconds_per_epoch"]) in printed
    assert plan["machine"]["measured"] == "2026-11-30"
    assert "disk writes 500 MB/s, reads 1.00 GB/s" in printed


@pytest.mark.parametrize("name", ["cpu-hour", "owt-L", "owt-M", "quickstart-t5", "wmt14-de-en", "xsum"])
def test_every_shipped_plan_fits_80_columns(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    said = in_process(monkeypatch, capsys, tmp_path, "plan", name)[1]
    assert max(map(len, said.splitlines())) <= 80
    assert "Encoder: live" in said
    assert "A store " in said


def test_long_names_are_told_to_their_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    setting = "{name: a-setting-with-a-very-long-name, count: 1000000, steps: 64}"
    said = in_process(monkeypatch, capsys, tmp_path, "plan", "owt-full", "--set", f"sample=[{setting}]")[1]
    assert max(map(len, said.splitlines())) <= 80
    first, second = re.findall(r"^(sample-a.*)\n(.*)$", said, re.MULTILINE)[0]
    assert first.split()[0] + second.strip() == "sample-a-setting-with-a-very-long-name"
    assert "~1.02 G" in first


@pytest.mark.parametrize("columns", [60, 80])
def test_a_plan_is_as_wide_as_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, columns: int
) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (999.0, 0.0, 0.0))
    said = in_process(monkeypatch, capsys, tmp_path, "plan", "cpu-hour", columns=columns)[1]
    assert columns - 12 < max(map(len, said.splitlines())) <= columns
    assert "times will be longer, and `--set compute.train.threads=1` is often" in " ".join(said.split())
    monkeypatch.setattr("os.getloadavg", lambda: (0.0, 0.0, 0.0))
    assert "Busy" not in in_process(monkeypatch, capsys, tmp_path, "plan", "tiny", columns=columns)[1]


def test_planning_with_a_measured_machine_loads_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom elf.flows.plan_table import show_plan\n"
        "show_plan('tiny', (), None, probe=False, as_json=True)\nprint('torch' in sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stderr == "False\n"


@pytest.mark.slow
def test_a_machine_is_measured_once_and_that_is_said(elf: Elf, tmp_path: Path) -> None:
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    first, second = elf("plan", "tiny", **cache), elf("plan", "tiny", **cache)
    assert first.stderr.startswith("elf: measuring this machine")
    assert first.stderr.count("\n") == 1
    assert second.stderr == ""
    assert _without_load(second.stdout) == _without_load(first.stdout)
    assert "measuring" in elf("plan", "tiny", "--probe", **cache).stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache"]


def _without_load(said: str) -> str:
    return re.sub(r"^Busy: .*\n(?:  .*\n)?", "", said, flags=re.MULTILINE)


def in_process(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    folder: Path,
    *arguments: str,
    columns: int = 80,
) -> tuple[int, str, str]:
    """``elf …`` in this process: exit code and what it printed."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", str(columns))
    for name in ("ELF_STORE", "ELF_REMOTE", "ELF_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "argv", ["elf", *arguments])
    code = 0
    try:
        main()
    except SystemExit as end:
        code = int(end.code or 0)
    said = capsys.readouterr()
    return code, said.out, said.err


def test_what_cannot_fit_does_not_start(elf: Elf, tmp_path: Path) -> None:
    done = elf("run", "tiny", "--set", HUGE)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    for part in ("Nothing was started", "~10.0 PB", "free there", "fetch-train", "--store"):
        assert part in done.stderr
    assert list(tmp_path.iterdir()) == []
    said = " ".join(elf("plan", "tiny", "--set", HUGE).stdout.split())
    assert "too little; `elf run` does not start" in said


def test_free_bytes_decide(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Half of what is guessed must fit; where all of it may not, a run says so and goes on."""
    until = ("run", "tiny", "--until", "fetch")  # guessed to take 700 kB
    monkeypatch.setattr("elf.flows.pricing.free_bytes", lambda _: 300_000)
    code, _, err = in_process(monkeypatch, capsys, tmp_path, *until)
    assert code == 1
    assert "~700 kB" in err
    assert not (tmp_path / "store/fetch").exists()
    monkeypatch.setattr("elf.flows.pricing.free_bytes", lambda _: 600_000)
    code, out, err = in_process(monkeypatch, capsys, tmp_path, *until)
    assert code == 0
    assert "may not fit" in err
    monkeypatch.setattr("elf.flows.pricing.free_bytes", lambda _: 0)
    code, out, _ = in_process(monkeypatch, capsys, tmp_path, *until)
    assert code == 0, "what is there needs nothing"
    assert "reused" in out
    planned = json.loads(next(tmp_path.glob("store/fetch/*/aux/planned.json")).read_text())
    assert planned["bytes"] == 700_000
    assert planned["seconds"] == pytest.approx(1.0, rel=0.5)


def test_what_is_built_again_needs_room_beside_the_old_and_has_a_plan(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The fetched text is 488,185 bytes, and that is known by now."""
    until = ("run", "tiny", "--until", "fetch", "--force", "fetch")
    assert in_process(monkeypatch, capsys, tmp_path, *until)[0] == 0
    monkeypatch.setattr("elf.flows.pricing.free_bytes", lambda _: 480_000)
    assert in_process(monkeypatch, capsys, tmp_path, *until)[0] == 1
    monkeypatch.setattr("elf.flows.pricing.free_bytes", lambda _: 500_000)
    code, out, err = in_process(monkeypatch, capsys, tmp_path, *until)
    assert (code, err.count("may not fit")) == (0, 0)
    assert "identical" in out
    planned = json.loads(next(tmp_path.glob("store/fetch/*/aux/planned.json")).read_text())
    assert planned["seconds"] > 0.1


def test_rows_that_are_there_make_the_need_sure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Latents of known rows count in full; without a store they are not needed at all."""
    assert in_process(monkeypatch, capsys, tmp_path, "run", "tiny", "--until", "tokenize")[0] == 0
    monkeypatch.setattr("elf.flows.pricing.free_bytes", lambda _: 700_000)
    code, _, err = in_process(monkeypatch, capsys, tmp_path, "run", "tiny", "--until", "encode")
    assert code == 1
    assert "The largest is encode-validation" in err
    assert "compute.train.source=rolling" in err
    live = ("--set", "compute.train.source=live", "train.latents.std=0.2", "compute.train.window_bytes=100")
    monkeypatch.setattr("elf.flows.commands_run.materialise", lambda *_, **__: {})
    monkeypatch.setattr("elf.flows.pricing.free_bytes", lambda _: 3_500_000)
    assert in_process(monkeypatch, capsys, tmp_path, "run", "tiny", "--until", "train", *live)[0] == 0
