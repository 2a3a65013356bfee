from typing import Any

import numpy as np
import pytest

from elf.stages.curves import BINS, read_curves


def line(step: int, *, ce: float = 3.0, decode: int = 10) -> dict[str, Any]:
    return {
        "step": step,
        "loss": 2.0,
        "ce": ce,
        "l2": 1.0,
        "decode_positions": decode,
        "denoise_positions": 30,
    }


def test_a_step_without_a_branch_says_nothing_about_it():
    lines = [line(1), line(2, ce=0.0, decode=0), line(3, ce=5.0, decode=30)]
    loss, ce, l2 = read_curves(lines)
    assert ce.mean.tolist() == [pytest.approx((3.0 * 10 + 5.0 * 30) / 40)]
    assert ce.step.tolist() == [2.0]
    assert loss.step.tolist() == l2.step.tolist() == [2.0]


def test_long_runs_are_drawn_by_bins_in_order():
    curve = read_curves([line(step, ce=float(step)) for step in range(1, 5001)])[1]
    assert len(curve.mean) == BINS
    assert (np.diff(curve.step) > 0).all()
    assert (curve.low <= curve.mean).all()
    assert (curve.mean <= curve.high).all()
    assert curve.mean.mean() == pytest.approx(2500.5)


def test_heldout_lines_are_kept_apart():
    held = {f"heldout_{raw}{part}": 4.0 + bool(raw) for raw in ("", "raw_") for part in ("loss", "ce", "l2")}
    curves = read_curves([line(1), {"step": 1, **held}])
    assert [curve.heldout.tolist() for curve in curves] == [[4.0]] * 3
    assert [curve.heldout_raw.tolist() for curve in curves] == [[5.0]] * 3
    assert not curves[0].empty
    assert all(curve.empty for curve in read_curves([]))
