from typing import Any

import numpy as np
import pytest

from elf.stages.curves import BINS, read_curves, read_levels


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


def test_a_measurement_without_a_branch_says_nothing_about_it():
    def held(step: int, decoded: int) -> dict[str, Any]:
        figures = {f"heldout_{raw}{part}": 4.0 for raw in ("", "raw_") for part in ("loss", "l2")}
        figures |= {f"heldout_{raw}ce": 5.0 * bool(decoded) for raw in ("", "raw_")}
        counts = {"decode": [decoded, *[0] * 9], "denoise": [30] * 10}
        return {"step": step, **figures} | {f"heldout_{name}_positions_by_t": n for name, n in counts.items()}

    loss, ce, l2 = read_curves([line(1), held(1, 0), held(2, 8)])
    assert (ce.heldout.tolist(), ce.heldout_raw.tolist(), ce.heldout_step.tolist()) == ([5.0], [5.0], [2.0])
    assert loss.heldout_step.tolist() == l2.heldout_step.tolist() == [1.0, 2.0]


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


def with_levels(step: int, *, ce: float, l2: float, rare: int = 0) -> dict[str, Any]:
    """Positions at the third and fourth tenth of t, errors twice as large at the fourth; `rare` ones at the last."""
    decode, denoise = [0] * 10, [0] * 10
    decode[2:4], denoise[2:4], denoise[9] = [step, 1], [3, step], rare
    sums = [[ce * (1 + (place == 3)) * count for place, count in enumerate(decode)]]
    sums.append([l2 * (1 + (place == 3)) * count for place, count in enumerate(denoise)])
    return line(step) | {
        "decode_positions_by_t": decode,
        "denoise_positions_by_t": denoise,
        "ce_sum_by_t": sums[0],
        "l2_sum_by_t": sums[1],
    }


def test_levels_are_means_of_thirds_and_empty_ones_are_none():
    lines = [with_levels(step, ce=9.0 / (1 + (step > 3)), l2=float(step > 6)) for step in range(1, 10)]
    held = {f"heldout_{name}": each for name, each in with_levels(9, ce=1.0, l2=2.0).items()}
    ce, l2 = read_levels([*lines, {"step": 9, **held}])
    assert (ce.part, l2.part) == ("ce", "l2")
    assert ce.t.tolist() == pytest.approx([0.05 + 0.1 * level for level in range(10)])
    assert ce.thirds[:, 2].tolist() == [9.0, 4.5, 4.5]
    assert ce.thirds[:, 3].tolist() == [18.0, 9.0, 9.0]
    assert l2.thirds[:, 3].tolist() == [0.0, 0.0, 2.0]
    assert np.isnan(np.delete(ce.thirds, [2, 3], axis=1)).all()
    assert ce.heldout[2:4].tolist() == [1.0, 2.0]
    assert l2.heldout[2:4].tolist() == [2.0, 4.0]


def test_a_level_next_to_nothing_fell_into_is_left_out():
    lines = [with_levels(step, ce=1.0, l2=1.0, rare=int(step == 900)) for step in range(1, 901)]
    _, l2 = read_levels(lines)
    assert np.isnan(l2.thirds[:, 9]).all()
    assert np.isnan(l2.heldout).all()


def test_lines_without_levels_have_none():
    assert read_levels([line(1)]) == []
