"""What was planned stands beside what came, for the steps of which a plan was kept."""

from pathlib import Path

from run_folder import RunFolder

from elf.pipeline.forecast import FILE, keep_forecast, read_forecast
from elf.stages import lineage
from elf.stages.reckoning import basis, reckon

DAY = "2026-11-30"


def plan(folder: RunFolder, role: str, **forecast: object) -> None:
    path = folder.inputs[role].path
    (path / "aux").mkdir(exist_ok=True)
    keep_forecast(path, {"seconds": 100.0, "bytes": 5_000_000, "machine_measured": DAY, **forecast})  # type: ignore[dict-item]


def test_steps_without_a_plan_are_left_out(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "store")
    assert reckon(lineage.trace(folder.inputs)) == []
    plan(folder, "latents")
    (row,) = reckon(lineage.trace(folder.inputs))
    assert (row.name, row.seconds.planned, row.seconds.actual) == ("latents", "~2 min", "1 m 35 s")
    assert (row.bytes.planned, row.bytes.actual) == ("~5.00 MB", "0 B")
    assert not row.seconds.off
    assert row.bytes.off


def test_steps_above_the_inputs_have_their_plans_too_and_all_have_a_sum(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "store")
    plan(folder, "latents")
    plan(folder, "train", seconds=1000.0)
    above = {"train": folder.inputs["train"]}
    *rows, total = reckon(lineage.trace(above))
    assert [row.name for row in rows] == ["encode · latents", "train"]
    assert [row.seconds.off for row in rows] == [False, True]
    assert (total.seconds.planned, total.seconds.actual) == ("~18 min", "1 h 03 m")


def test_what_is_not_known_has_a_dash_and_small_figures_are_never_marked(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "store")
    plan(folder, "tokens", seconds=None, bytes=900_000)
    (row,) = reckon(lineage.trace(folder.inputs))
    assert row.seconds.planned == "–"
    assert not row.seconds.off
    assert not row.bytes.off


def test_a_damaged_plan_is_none(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "store")
    for text in ("", "[1]", "{"):
        plan(folder, "train")
        (folder.inputs["train"].path / FILE).write_text(text)
        assert read_forecast(folder.inputs["train"].path) is None
        assert reckon(lineage.trace(folder.inputs)) == []


def test_the_page_says_what_its_seconds_rest_on(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "store")
    plan(folder, "train")
    assert basis(lineage.trace(folder.inputs)).endswith(DAY)
    plan(folder, "tokens", machine_measured=None)
    assert "reference" in basis(lineage.trace(folder.inputs))
    assert DAY in basis(lineage.trace(folder.inputs))
