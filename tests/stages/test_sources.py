"""One training run whatever its latents come from: same rows, same order, same losses, on any mixture of sources."""

import json
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from forked_worker import Server
from toy_encoders import pairs, texts
from toy_sources import Sources, make_split
from toy_training import flat, launch, payload

from elf.cache.errors import Unwritable
from elf.cache.layout import DType
from elf.pipeline.errors import Failed, Misconfigured
from elf.stages import rolling, training
from elf.stages.feeding import Fed
from elf.stages.live import LiveStates
from elf.stages.model.config import ObjectiveConfig
from elf.stages.model.draws import draw, draw_drops
from elf.stages.pieces import Measured
from elf.stages.rolling import RollingStates, Wanted
from elf.stages.team import Team
from elf.stages.training_metrics import read_metrics
from elf.stages.training_state import TrainingState
from elf.stages.worker import main as worker_main

SETTINGS: dict[str, Any] = {
    "objective": {"condition_dropout": 0.5, "decode_noise_scale": 1.0},
    "heldout": {"every": 3, "rows": 5},
    "steps": 7,
    "save_every": 100,
}
STEP_BYTES = 6 * (16 * 32 * 2 + 24)
WINDOW = 4 * (STEP_BYTES + 8192)
"""Room for four blocks of one step."""


@pytest.fixture(scope="module")
def paired(tmp_path_factory: pytest.TempPathFactory) -> Sources:
    folder = tmp_path_factory.mktemp("pairs")
    return Sources(
        make_split(folder / "train", pairs(23), max_source=6),
        make_split(folder / "heldout", pairs(7, seed=1), max_source=6),
    )


@pytest.fixture(scope="module")
def stored(paired: Sources, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run from the store, to compare with."""
    out = tmp_path_factory.mktemp("stored")
    with pytest.MonkeyPatch.context() as patch:
        seen = note_rows(patch)
        paired.run(out, "store", SETTINGS)
    (out.parent / f"{out.name}.json").write_text(json.dumps(seen))
    return out


def rows_of(stored: Path) -> list[tuple[int, list[int]]]:
    plain = json.loads((stored.parent / f"{stored.name}.json").read_text())
    return [(step, rows) for step, rows in plain]


def note_rows(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, list[int]]]:
    """Steps and the rows each was made of, as they are trained on."""
    seen: list[tuple[int, list[int]]] = []
    gate = training.gate

    def noted(what: str, value: float, each: Fed, measured: Measured, team: Team) -> None:
        if what == "loss":
            seen.append((each.step, each.rows.tolist()))
        gate(what, value, each, measured, team)

    monkeypatch.setattr(training, "gate", noted)
    return seen


def stop_at(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the next run break off before step ``step`` changes anything."""
    advance = TrainingState.advance

    def breaking(self: TrainingState, lr: float) -> None:
        if self.step == step:
            monkeypatch.setattr(TrainingState, "advance", advance)
            raise KeyboardInterrupt
        advance(self, lr)

    monkeypatch.setattr(TrainingState, "advance", breaking)


def numbers(out: Path) -> list[dict[str, Any]]:
    return list(read_metrics(out / "metrics.jsonl"))


def assert_one_run(out: Path, other: Path) -> None:
    """Equal files by name, equal losses to rounding."""
    assert payload(out).keys() == payload(other).keys()
    for one, two in zip(numbers(out), numbers(other), strict=True):
        assert flat(one) == pytest.approx(flat(two), rel=1e-4)


@pytest.mark.parametrize("source", ["live", "rolling"])
def test_every_source_gives_the_run_of_the_store(
    paired: Sources, stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    seen = note_rows(monkeypatch)
    paired.run(tmp_path, source, SETTINGS, window_bytes=WINDOW)
    assert_one_run(tmp_path, stored)
    assert (tmp_path / "model.json").read_bytes() == (stored / "model.json").read_bytes()
    assert seen == rows_of(stored)
    assert [step for step, _ in seen] == list(range(7))
    assert [line["step"] for line in numbers(tmp_path) if "heldout_loss" in line] == [0, 3, 6, 7]
    assert not list(tmp_path.glob("window-*"))


def test_a_run_goes_on_with_another_source(
    paired: Sources, stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {**SETTINGS, "save_every": 1}
    for source, step in (("store", 2), ("live", 3), ("rolling", 5)):
        stop_at(step, monkeypatch)
        with pytest.raises(KeyboardInterrupt):
            paired.run(tmp_path, source, settings, window_bytes=WINDOW)
        assert not list(tmp_path.glob("window-*"))
    paired.run(tmp_path, "live", settings)
    assert_one_run(tmp_path, stored)


@pytest.mark.slow
def test_text_too(tmp_path: Path) -> None:
    split = Sources(make_split(tmp_path / "split", texts(12)))
    for source in ("store", "live", "rolling"):
        split.run(tmp_path / source, source, {"steps": 4})
    for source in ("live", "rolling"):
        assert_one_run(tmp_path / source, tmp_path / "store")


def test_a_child_is_told_what_is_not_built(paired: Sources, stored: Path, tmp_path: Path) -> None:
    settings = {**SETTINGS, "steps": 2}
    assert worker_main(paired.job(tmp_path, "live", settings)) == 0
    assert "The encoder runs beside each step" in (tmp_path / "aux" / "events.jsonl").read_text()
    for one, two in zip(numbers(tmp_path)[:2], numbers(stored)[:2], strict=True):
        assert flat(one) == pytest.approx(flat(two), rel=1e-4)


@pytest.fixture(scope="module")
def worker() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


@pytest.mark.slow
def test_kill_9_in_a_window_changes_nothing_and_leaves_nothing(
    paired: Sources, stored: Path, worker: Server, tmp_path: Path
) -> None:
    out = tmp_path / "killed"
    settings = {**SETTINGS, "save_every": 2}
    job = paired.job(out, "rolling", settings, window_bytes=WINDOW)
    left: list[Path] = []
    for step in (0, 1, 4):
        assert worker.run(job, step=step) == -9
        left += out.glob("window-0/*")
    assert left, "it was killed with a window on the disk"
    assert worker.run(paired.job(out, "store", settings)) == 0
    assert not list(out.glob("window-*")), "whatever the source is now"
    assert_one_run(out, stored)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("source", ["live", "rolling"])
def test_two_processes_have_a_source_each(paired: Sources, stored: Path, tmp_path: Path, source: str) -> None:
    """Each encodes its own rows; a window of a third process, of an earlier try, is gone too."""
    out = tmp_path / source
    job = paired.job(out, source, SETTINGS, processes=2, window_bytes=2 * WINDOW)
    (out / "window-2" / "0").mkdir(parents=True)
    launch(job, 2)
    assert_one_run(out, stored)
    assert not list(out.glob("window-*"))


# The window


class Numbered:
    """States that tell their row: every number of row r is r, and −r where it is dropped."""

    shape = (1000, 4, 8)
    dtype: DType = "float16"

    def __init__(self, *, fail_at: int = 10**9) -> None:
        self.asked: list[int] = []
        self.fail_at = fail_at
        self.stopped = threading.Event()

    def willneed(self, rows: Any, drop_B: torch.Tensor) -> None:
        raise AssertionError("nobody reads this from a disk")

    def read(self, rows: Any, drop_B: torch.Tensor, out: Any) -> torch.Tensor:
        if len(self.asked) == self.fail_at:
            raise Failed("Row 7 cannot be stored.")
        self.asked.append(len(rows))
        signed = np.where(drop_B.numpy(), -rows, rows)
        out[: len(rows)] = signed[:, None, None]
        return torch.from_numpy(out[: len(rows)])

    def stop(self) -> None:
        self.stopped.set()


ROW_BYTES = 4 * 8 * 2 + 24


def wanted(count: int, batch: int = 5) -> list[Wanted]:
    random = np.random.default_rng(count)
    return [
        Wanted(random.integers(0, 1000, batch), torch.from_numpy(random.random(batch) < 0.5))
        for _ in range(count)
    ]


def disk(folder: Path) -> int:
    found = 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):  # temporary files come and go
            found += path.stat().st_size if path.is_file() else 0
    return found


def test_a_window_gives_what_is_asked_for_in_order_within_its_bytes(tmp_path: Path) -> None:
    made, steps = Numbered(), wanted(26)
    allowed = 4 * (2 * 5 * ROW_BYTES + 8192)
    window = RollingStates(made, steps, batch=5, folder=tmp_path / "w", window_bytes=allowed)
    out = np.empty((5, 4, 8), np.float16)
    for number, each in enumerate(steps):
        found = window.read(each.rows, each.drop_B, out)
        signed = np.where(each.drop_B.numpy(), -each.rows, each.rows)
        assert (found == torch.from_numpy(signed)[:, None, None]).all()
        assert disk(tmp_path / "w") <= allowed
        assert len(made.asked) <= number + 20, "it runs a few blocks ahead and no farther"
    with pytest.raises(ValueError, match="at its end"):
        window.read(steps[0].rows, steps[0].drop_B, out)
    window.stop()
    assert not (tmp_path / "w").exists()


def test_a_window_refuses_another_order(tmp_path: Path) -> None:
    steps = wanted(3)
    window = RollingStates(Numbered(), steps, batch=5, folder=tmp_path / "w", window_bytes=10**6)
    with pytest.raises(ValueError, match="the window holds rows"):
        window.read(steps[1].rows, steps[1].drop_B, np.empty((5, 4, 8), np.float16))
    window.stop()


def test_what_the_encoder_refuses_comes_where_it_was_needed(tmp_path: Path) -> None:
    steps = wanted(9)
    made = Numbered(fail_at=4)
    window = RollingStates(
        made, steps, batch=5, folder=tmp_path / "w", window_bytes=2 * (5 * ROW_BYTES + 8192)
    )
    out = np.empty((5, 4, 8), np.float16)
    for each in steps[:4]:
        window.read(each.rows, each.drop_B, out)
    for _ in range(2):
        with pytest.raises(Failed, match=r"^Row 7 cannot be stored\.$"):
            window.read(steps[4].rows, steps[4].drop_B, out)
    window.stop()
    assert not (tmp_path / "w").exists()


def test_who_waits_for_a_window_can_be_told_to_stop(tmp_path: Path) -> None:
    encoding = threading.Event()

    class Slow(Numbered):
        def read(self, rows: Any, drop_B: torch.Tensor, out: Any) -> torch.Tensor:
            encoding.set()
            assert self.stopped.wait(60)
            raise rolling.Stopped

    steps = wanted(3)
    window = RollingStates(Slow(), steps, batch=5, folder=tmp_path / "w", window_bytes=10**6)
    ended: list[str] = []

    def wait() -> None:
        try:
            window.read(steps[0].rows, steps[0].drop_B, np.empty((5, 4, 8), np.float16))
        except rolling.Stopped:
            ended.append("stopped")

    reader = threading.Thread(target=wait)
    reader.start()
    assert encoding.wait(60)
    window.stop()
    reader.join(60)
    assert ended == ["stopped"]
    assert not (tmp_path / "w").exists()


def test_two_steps_must_fit(paired: Sources, tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match=r"may take 9\.00 kB of disk, and two steps of 6 rows take .* kB"):
        paired.run(tmp_path, "rolling", SETTINGS, window_bytes=9000)
    assert payload(tmp_path).keys() <= {"model.json", "metrics.jsonl"}


def test_a_full_disk_ends_the_run_in_words(
    paired: Sources, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = rolling.write_shard
    calls: list[int] = []

    def full(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise Unwritable("Cannot write window-0: the disk is full.")
        return write(*arguments)

    monkeypatch.setattr(rolling, "write_shard", full)
    with pytest.raises(Unwritable, match="the disk is full"):
        paired.run(tmp_path, "rolling", {**SETTINGS, "save_every": 1}, window_bytes=WINDOW)
    assert [line["step"] for line in numbers(tmp_path) if "loss" in line] == [1, 2]
    assert not list(tmp_path.glob("window-*"))


def test_an_encoder_that_fails_ends_the_run_in_its_words(
    paired: Sources, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = LiveStates.read

    def fail(self: LiveStates, rows: Any, drop_B: torch.Tensor, out: Any) -> torch.Tensor:
        if self.tokens.rows == 23 and len(rows) == 6 and drop_B.any():
            raise Failed("Row 3 cannot be stored.")
        return read(self, rows, drop_B, out)

    monkeypatch.setattr(LiveStates, "read", fail)
    for source in ("live", "rolling"):
        with pytest.raises(Failed, match=r"^Row 3 cannot be stored\.$"):
            paired.run(tmp_path / source, source, SETTINGS, window_bytes=WINDOW)
        assert not list((tmp_path / source).glob("window-*"))


def test_drops_are_known_before_their_step() -> None:
    objective = ObjectiveConfig(condition_dropout=0.3)
    whole = [draw(5, step, range(4, 40), length=2, width=3, objective=objective).drop_B for step in range(3)]
    for step, drop_B in enumerate(whole):
        assert draw_drops(5, step, range(4, 40), objective=objective).tolist() == drop_B.tolist()
        assert 4 < int(drop_B.sum()) < 20
    assert not draw_drops(5, 0, range(9), objective=ObjectiveConfig()).any()


@pytest.mark.slow
def test_rows_come_by_reads_as_by_maps(paired: Sources, stored: Path, tmp_path: Path) -> None:
    paired.run(tmp_path, "store", SETTINGS, reader="pread")
    assert payload(tmp_path) == payload(stored)
