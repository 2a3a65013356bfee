"""What a bar and a tracker are told of a step."""

from pathlib import Path
from typing import Any

import pytest

from elf.pipeline.progress import figures
from elf.stages.tracking import Tracker
from elf.stages.training_metrics import Journal, read_metrics
from elf.stages.watching import Watch


class Told:
    """A bar and a tracker's own end that keep what they are told."""

    def __init__(self) -> None:
        self.shown: list[dict[str, float | str]] = []
        self.logged: list[dict[str, Any]] = []

    def advance(self, amount: float = 1, **shown: float | str) -> None:
        self.shown.append(shown)

    def log(self, values: dict[str, Any], step: int | None = None) -> None:
        self.logged.append(values)

    def start(self) -> None: ...

    def store_init_configuration(self, values: dict[str, Any]) -> None: ...

    def finish(self) -> None: ...


def line(unit: str, *, ce: float, l2: float, decoded: int, denoised: int) -> dict[str, Any]:
    counts = {f"decode_{unit}": decoded, f"denoise_{unit}": denoised}
    return {"step": 1, "loss": 1.5, "ce": ce, "l2": l2, "lr": 0.002, **counts}


@pytest.mark.parametrize("unit", ["positions", "rows"])
def test_a_branch_without_rows_has_no_loss_to_show(unit: str, tmp_path: Path) -> None:
    told = Told()
    lines = [
        line(unit, ce=4.5, l2=1.25, decoded=8, denoised=24),
        line(unit, ce=0.0, l2=1.25, decoded=0, denoised=32),
        line(unit, ce=4.5, l2=0.0, decoded=32, denoised=0),
    ]
    with Journal(tmp_path, tmp_path, keep=0) as journal, Tracker(told) as tracker:
        watch = Watch(journal, told, tracker, None, None)
        for each in lines:
            watch.step(each, seconds=0.1)
    assert [figures(shown) for shown in told.shown] == [
        "loss 1.5  l2 1.25  ce 4.5  lr 0.002",
        "loss 1.5  l2 1.25  ce –  lr 0.002",
        "loss 1.5  l2 –  ce 4.5  lr 0.002",
    ]
    assert [sorted({"ce", "l2"} & values.keys()) for values in told.logged] == [["ce", "l2"], ["l2"], ["ce"]]
    assert list(read_metrics(tmp_path / "metrics.jsonl")) == lines
