"""Times are for a free machine, and where it is not that is said."""

import pytest

from elf.pipeline.stage import Compute
from elf.stages.load import busy_text


@pytest.fixture(autouse=True)
def four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 4)


@pytest.mark.parametrize("load", [0.0, 1.0, 2.0])
def test_a_free_machine_is_no_matter(monkeypatch: pytest.MonkeyPatch, load: float) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (load, 9.0, 9.0))
    assert busy_text(Compute()) == ""


@pytest.mark.parametrize(
    ("train", "end"),
    [
        (Compute(), "longer, and `--set compute.train.threads=1` is often faster."),
        (Compute(threads=4), "longer, and `--set compute.train.threads=1` is often faster."),
        (Compute(threads=1), "longer."),
        (None, "longer."),
    ],
)
def test_a_busy_machine_is_told_with_what_helps(
    monkeypatch: pytest.MonkeyPatch, train: Compute | None, end: str
) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (2.1, 0.0, 0.0))
    said = busy_text(train)
    assert said.startswith(
        "Busy: a load of 2.1 on 4 cores in the last minute; while that lasts, times will be"
    )
    assert said.endswith(end)
