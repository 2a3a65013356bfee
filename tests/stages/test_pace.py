"""Tokens a second and MFU: means that are exact, of files that a killed run may have torn."""

import json
from pathlib import Path

import pytest

from elf.stages.pace import TIMING, Effort, Pacer, flops_text, last_step, percent, read_pace

EFFORT = Effort(tokens=1000, flops=2e9, peak=1e11)


def line(step: int, seconds: float, **more: float) -> str:
    return json.dumps(
        {"step": step, "seconds": seconds, "waited": 0.1, "beside": 0.5, **EFFORT.line(seconds), **more}
    )


def test_mfu_is_operations_over_time_and_peak() -> None:
    assert EFFORT.mfu(0.1) == pytest.approx(0.2)
    assert EFFORT.line(0.1) == {"tokens_per_s": 10_000.0, "mfu": 0.2}


def test_a_bar_shows_the_mean_of_the_last_steps() -> None:
    pacer = Pacer(EFFORT)
    assert pacer.add(0.01) == {"tok/s": "100 k", "mfu": "200 %"}
    assert [pacer.add(1.0) for _ in range(30)][-1] == {"tok/s": "1,000", "mfu": "2.0 %"}


def test_the_mean_of_a_run_is_over_its_time_and_each_step_once(tmp_path: Path) -> None:
    lines = [line(1, 9.0), line(2, 1.0), line(1, 1.0), '{"step": 3, "sec', line(3, 2.0), '{"step": 4}']
    (tmp_path / TIMING).write_text("\n".join(lines))
    pace = read_pace(tmp_path)
    assert pace is not None
    assert pace.tokens_per_s == pytest.approx(3000 / 4)
    assert pace.mfu == pytest.approx(3 * 2e9 / 4 / 1e11)
    assert pace.waiting == pytest.approx(0.3 / 5.5)
    assert pace.beside == pytest.approx(1.5 / 5.5)
    assert str(pace) == ("750 tokens/s, MFU 1.5 %; 5.5 % of the time waiting for rows, 27 % beside the steps")
    assert last_step(tmp_path) == 4


def test_a_run_that_tells_nothing_has_no_pace(tmp_path: Path) -> None:
    assert read_pace(tmp_path) is None
    assert last_step(tmp_path) == -1
    (tmp_path / TIMING).write_text('{"step": 1, "seconds": 0.5, "waited": 0.0}\n')
    assert read_pace(tmp_path) is None


def test_shares_are_short() -> None:
    assert [percent(share) for share in (0.0, 0.004, 0.0996, 0.31, 1.2)] == [
        "0.0 %", "0.4 %", "10 %", "31 %", "120 %",
    ]  # fmt: skip
    assert [flops_text(number) for number in (2.77e8, 34e9, 3.89e14)] == [
        "0.277 GFLOP", "34 GFLOP", "389 TFLOP",
    ]  # fmt: skip
