import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elf.pipeline.errors import Failed
from elf.stages.model.draws import GRID_ROWS
from elf.stages.sample_settings import READINGS, steps_read
from elf.stages.trajectory import (
    Followed,
    Reading,
    Trajectory,
    first_settled,
    read_trajectory,
    write_trajectory,
)

IDS = np.array([[7, 8, 9, 5], [7, 6, 9, 6], [7, 8, 9, 6], [7, 8, 5, 6]])
DISTANCES = np.array([1.25, 1.0, 0.5, 0.0])
TIMES = (Reading(0, 0.0, 0.0), Reading(2, 0.25, 0.2), Reading(5, 0.5, 0.45), Reading(6, 1.0, 1.0))
PIECES = {5: "</s>", 6: " a", 7: "b", 8: ".", 9: "\u2028"}
ONE = Followed(3, IDS, DISTANCES, 2 * DISTANCES, differing=1)
OTHER = Followed(4, IDS[:, :1], 3 * DISTANCES, 2 * DISTANCES, differing=0)
TRAJECTORY = Trajectory(11, 6, TIMES, (ONE, OTHER), PIECES)


def test_a_token_is_settled_once_it_is_the_last_one_for_good() -> None:
    """The first always was; the second was, changed and came back; the third came with the end."""
    assert first_settled(IDS).tolist() == [0, 2, 3, 1]
    assert ONE.settled.tolist() == [0.25, 0.5, 0.75, 1.0]
    assert TRAJECTORY.settled.tolist() == [0.625, 0.75, 0.875, 1.0]
    assert TRAJECTORY.x_distance.tolist() == [2.5, 2.0, 1.0, 0.0]


@given(st.lists(st.lists(st.integers(0, 2), min_size=3, max_size=3), min_size=1, max_size=7))
def test_settling_is_what_its_words_say(readings: list[list[int]]) -> None:
    ids = np.array(readings)
    for position, first in enumerate(first_settled(ids)):
        column = ids[:, position]
        assert (column[first:] == column[-1]).all()
        assert first == 0 or column[first - 1] != column[-1]


@given(st.integers(1, 2000))
def test_few_steps_are_all_read_and_many_evenly(steps: int) -> None:
    read = steps_read(steps)
    assert len(read) == min(steps, READINGS)
    assert (read[0], read[-1]) == (0, steps - 1)
    gaps = np.diff(read)
    assert not len(gaps) or 1 <= gaps.min() <= gaps.max() <= gaps.min() + 1


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "trajectory.json"
    write_trajectory(path, TRAJECTORY)
    read = read_trajectory(path)
    assert (read.seed, read.steps, read.readings, read.pieces) == (11, 6, TIMES, PIECES)
    assert [(text.id, text.differing) for text in read.texts] == [(3, 1), (4, 0)]
    assert (read.texts[0].ids_TN == IDS).all()
    assert read.texts[1].z_distance.tolist() == [2.5, 2.0, 1.0, 0.0]
    plain = json.loads(path.read_text())
    assert plain["readings"][1] == {
        "step": 2, "t": 0.25, "asked": 0.2, "settled": 0.75, "x_distance": 2.0, "z_distance": 2.0,
    }  # fmt: skip
    assert plain["texts"][0]["settled"] == [0.25, 0.5, 0.75, 1.0]
    write_trajectory(tmp_path / "again.json", read)
    assert (tmp_path / "again.json").read_bytes() == path.read_bytes()


def test_numbers_that_are_none_are_not_written(tmp_path: Path) -> None:
    broken = replace(TRAJECTORY, texts=(replace(ONE, x_distance=np.array([1.0, np.nan, 0.5, 0.0])),))
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_trajectory(tmp_path / "trajectory.json", broken)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("found", "put"),
    [
        ('"seed"', '"grain"'),
        ('"steps": 6', '"steps": "six"'),
        ("[7, 8, 9, 5]", "[7, 8, 9]"),
        ("[[7], [7], [7], [7]]", "[[7], [7], [7]]"),
        ("[[7], [7], [7], [7]]", "[[], [], [], []]"),
        ('"9": ', '"10": '),
        ("]}", "]"),
    ],
)
def test_a_damaged_file_is_refused_by_name(tmp_path: Path, found: str, put: str) -> None:
    path = tmp_path / "trajectory.json"
    write_trajectory(path, TRAJECTORY)
    text = path.read_text()
    assert found in text
    path.write_text(text.replace(found, put, 1))
    with pytest.raises(Failed, match=r"trajectory\.json"):
        read_trajectory(path)


def test_texts_that_are_followed_share_their_times() -> None:
    from elf.stages.config import Sample

    assert Sample(name="x", trajectories=GRID_ROWS).trajectories == GRID_ROWS
    with pytest.raises(ValueError, match="less than or equal to 16"):
        Sample(name="x", trajectories=GRID_ROWS + 1)
