"""What a run tells the sweep that began it: all of it is taken that can be read, and none of it can fail a run."""

import json
from pathlib import Path
from typing import Any, cast

import pytest

from elf.flows.told_outcomes import VARIABLE, read_outcomes, telling_outcomes


class Quiet:
    """A watcher that only notes that it was told."""

    def __init__(self) -> None:
        self.hits = 0

    def on_hit(self, planned: Any, artifact: Any) -> None:
        self.hits += 1


class Step:
    key = "k1"


def test_torn_lines_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "outcomes.jsonl"
    assert read_outcomes(path) == {}
    path.write_text(
        json.dumps(["k1", "reused"]) + '\n["k2", "bu["k3", "built"]\n' + json.dumps(["k4", "pulled"])
    )
    assert read_outcomes(path) == {"k1": "reused", "k4": "pulled"}


def test_a_file_that_cannot_be_written_fails_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Quiet()
    for place, told in (
        (tmp_path / "gone" / "outcomes.jsonl", {}),
        (tmp_path / "outcomes.jsonl", {"k1": "reused"}),
    ):
        monkeypatch.setenv(VARIABLE, str(place))
        telling_outcomes(cast("Any", watch)).on_hit(cast("Any", Step()), cast("Any", None))
        assert read_outcomes(place) == told
    assert watch.hits == 2
