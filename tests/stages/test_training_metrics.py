"""The file of losses: cut back on resume, whole at the end."""

from collections.abc import Callable
from pathlib import Path

import pytest

from elf.cache.errors import Damaged
from elf.stages.training_metrics import METRICS, TIMING, Journal, fault_of, read_metrics, summarise


def line(step: int) -> dict[str, float]:
    decoded = {"ce": step / 3, "decode_positions": 8} if step % 2 else {"ce": 0.0, "decode_positions": 0}
    return {"step": step, **decoded, "l2": 2.0, "denoise_positions": 24 - decoded["decode_positions"]}


def test_a_resumed_file_equals_an_undisturbed_one(tmp_path: Path) -> None:
    for name in ("whole", "stopped"):
        (tmp_path / name).mkdir()
    with Journal(tmp_path / "whole", tmp_path, keep=0) as whole:
        for step in range(1, 9):
            whole.write(line(step))
    with Journal(tmp_path / "stopped", tmp_path, keep=0) as stopped:
        for step in range(1, 5):
            stopped.write(line(step))
        saved = stopped.sync()
        assert fault_of(tmp_path / "stopped", saved) is None
        stopped.write(line(5))
    with (tmp_path / "stopped" / METRICS).open("ab") as file:
        file.write(b'{"step": 6, "lo')
    kept = saved["metrics_bytes"]
    assert isinstance(kept, int)
    with Journal(tmp_path / "stopped", tmp_path, keep=kept) as resumed:
        for step in range(5, 9):
            resumed.write(line(step))
        assert fault_of(tmp_path / "stopped", resumed.sync()) is None
    assert (tmp_path / "stopped" / METRICS).read_bytes() == (tmp_path / "whole" / METRICS).read_bytes()
    assert [entry["step"] for entry in read_metrics(tmp_path / "stopped" / METRICS)] == list(range(1, 9))


def test_lost_and_changed_lines_are_known(tmp_path: Path) -> None:
    with Journal(tmp_path, tmp_path, keep=0) as metrics:
        metrics.write(line(1))
        first = metrics.sync()
        metrics.write(line(2))
        second = metrics.sync()
    path = tmp_path / METRICS
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b'"l2": 2.0, "step": 2', b'"l2": 9.0, "step": 2'))
    assert fault_of(tmp_path, first) is None
    assert (
        fault_of(tmp_path, second)
        == f"was saved when the first {len(whole)} bytes of metrics.jsonl were others"
    )
    path.write_bytes(whole[:-1])
    held = f"was saved when metrics.jsonl held {len(whole)} bytes, and it holds {len(whole) - 1}"
    assert fault_of(tmp_path, second) == held
    path.unlink()
    assert (fault_of(tmp_path, first) or "").endswith("and it holds 0")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda whole: whole[:-9], r"metrics\.jsonl, line 4, is damaged: .*--force"),
        (lambda whole: whole.replace(b'"step": 2', b'"step\xff: 2'), r"metrics\.jsonl, line 2, is damaged"),
        (lambda whole: b"7\n" + whole, r"metrics\.jsonl, line 1, tells of no step\. .*--force"),
        (lambda whole: whole.replace(b'"step": 3', b'"stop": 3'), r"line 3, tells of no step"),
    ],
)
def test_what_is_damaged_is_named_with_its_line(
    damage: Callable[[bytes], bytes], words: str, tmp_path: Path
) -> None:
    with Journal(tmp_path, tmp_path, keep=0) as metrics:
        for step in range(1, 5):
            metrics.write(line(step))
    path = tmp_path / METRICS
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(Damaged, match=words):
        list(read_metrics(path))


def test_a_number_that_is_not_finite_is_refused(tmp_path: Path) -> None:
    with (
        Journal(tmp_path, tmp_path, keep=0) as metrics,
        pytest.raises(ValueError, match="not JSON compliant"),
    ):
        metrics.write({"loss": float("nan")})


def test_summary_is_over_the_positions_of_the_last_steps(tmp_path: Path) -> None:
    with Journal(tmp_path, tmp_path, keep=0) as metrics:
        for step in range(1, 9):
            metrics.write(line(step))
            if step % 4 == 0:
                metrics.write({"step": step, "heldout_loss": step / 2})
    one, three, every = (summarise(tmp_path / METRICS, last=last) for last in (1, 3, 50))
    assert one["heldout"] == {"step": 8, "heldout_loss": 4.0}
    assert (one["ce"], one["l2"], one["loss"]) == (0.0, 2.0, 2.0)
    assert three["ce"] == pytest.approx(7 / 3), "of steps 6, 7 and 8 only the 7th had decode rows"
    assert three["loss"] == pytest.approx((8 * 7 / 3 + (24 + 16 + 24) * 2) / 72)
    assert every["last_steps"] == 8
    assert every["ce"] == pytest.approx((1 + 3 + 5 + 7) / 3 / 4)


def test_clocks_are_kept_apart_and_only_added_to(tmp_path: Path) -> None:
    for step in (1, 2):
        with Journal(tmp_path, tmp_path, keep=0) as journal:
            journal.time(step, seconds=0.25, waited=0.0)
            journal.write(line(step))
    assert [entry["step"] for entry in read_metrics(tmp_path / TIMING)] == [1, 2]
    assert [entry["step"] for entry in read_metrics(tmp_path / METRICS)] == [2]


def test_who_does_not_write_touches_nothing(tmp_path: Path) -> None:
    with Journal(tmp_path, tmp_path, keep=77, writes=False) as journal:
        journal.write(line(1))
        journal.time(1, seconds=1.0, waited=0.0)
        journal.sync()
    assert list(tmp_path.iterdir()) == []
